"""Advice on physics as it is sent, judged and shown."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.core.decoding import from_values
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.experiment.examination import side_by_side
from orchestrator.experiment.examination.robot_check import RobotCheck
from orchestrator.features.advice import advice_view, measuring
from orchestrator.features.advice.physics_advice import (
    ContactPair,
    MedianEstimate,
    PhysicsAdvice,
    PhysicsChange,
)
from orchestrator.jobfile import from_mapping

HOPPER = Path(__file__).parents[3] / "mjcf" / "hopper.xml"


def about(median: float | None) -> MedianEstimate:
    low, high = (None, None) if median is None else (0.9 * median, 1.1 * median)
    return MedianEstimate(median=median, low=low, high=high)


FASTER = PhysicsChange(
    name="timestep 0.01",
    edits={"option.timestep": 0.01, 'geom.a "b".contype': 0},
    task_options={"frame_skip": 4},
    remark="two\nlines",
    speedup=about(2.0),
    deviation=about(0.05),
    relative=about(1.1),
)
SLOWER = replace(FASTER, name="solver CG", edits={"option.solver": "CG"}, speedup=about(0.7))
UNSTABLE = replace(
    FASTER,
    name="timestep 0.04",
    relative=about(None),
    problem="physics diverges in 9 of 10 motions",
)
BY_HAND = replace(FASTER, name="no contact", edits={}, mjcf="add <contact/>")
UNNAMED = PhysicsChange(name="idle geoms", mjcf="name them")
ADVICE = PhysicsAdvice(
    cpu_s=3.0,
    env_steps_per_s=12_345.6,
    size_m=0.5,
    horizon_s=0.8,
    starts=20,
    states=400,
    deviation=about(0.04),
    changes=(FASTER, UNSTABLE, BY_HAND, SLOWER, UNNAMED),
    contact_pairs=(
        ContactPair(geoms=("floor", "foot"), contacts=1.5, rows_share=0.75, touching=0.9),
    ),
    notes=("the solver took 3 iterations",),
)


def shown(advice: PhysicsAdvice, capsys: pytest.CaptureFixture[str]) -> str:
    row = RobotCheck(path="a.xml", verdict="ok", task="forward", figures={})
    advice_view.show([row, row], [None, advice])
    return capsys.readouterr().out


def test_advice_survives_its_way_between_processes() -> None:
    answer = ExaminationAnswer(measured=asdict(ADVICE))
    received = ExaminationAnswer.from_line(answer.to_line()).measured
    assert from_values(PhysicsAdvice, received) == ADVICE


@pytest.mark.parametrize(
    ("change", "is_faster", "is_no_worse", "is_usable"),
    [
        (FASTER, True, True, True),
        (SLOWER, False, True, True),
        (UNSTABLE, True, False, False),
        (BY_HAND, True, True, False),
        (UNNAMED, False, False, False),
        (replace(FASTER, speedup=MedianEstimate(median=1.1, low=1.0, high=1.2)), False, True, True),
        (replace(FASTER, relative=about(1.3)), True, False, True),
        (
            replace(FASTER, relative=MedianEstimate(median=1.0, low=0.5, high=1.6)),
            True,
            False,
            True,
        ),
    ],
)
def test_a_change_is_judged_by_its_intervals(
    change: PhysicsChange, is_faster: bool, is_no_worse: bool, is_usable: bool
) -> None:
    assert (change.is_faster, change.is_no_worse, change.is_usable) == (
        is_faster,
        is_no_worse,
        is_usable,
    )


def test_the_table_has_what_is_faster_and_the_rest_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(ADVICE, capsys)
    assert "2.00 (1.80–2.20)" in text
    assert "∞ (∞–∞)" in text
    assert "physics diverges in 9 of 10 motions" in text
    assert "Not faster: solver CG 0.70." in text
    assert "Not measured: idle geoms: name them." in text
    assert "In the MJCF, for “no contact”: add <contact/>" in text
    assert "floor–foot (75% of the rows, 1.5 contacts a state, touching in 90%)" in text
    assert "The solver took 3 iterations." in text
    assert "12,346 env_steps/s" in text
    assert text.count('model."option.timestep" = 0.01') == 1  # not of what diverges


def test_printed_lines_are_taken_by_a_job_file_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(ADVICE, capsys).partition("add its lines")[2].splitlines()[1:]
    text = "\n".join(
        ['name = "x"', "[[jobs]]", f'name = "hopper"\nxml = "{HOPPER}"\ntask = "forward"', *lines]
    )
    (job,) = from_mapping(tomllib.loads(text), source="x.toml", base=HOPPER.parent).jobs
    assert job.spec.model_edits == FASTER.edits
    assert job.spec.task_options == FASTER.task_options


def test_a_change_that_something_speaks_against_has_no_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    objection = "returns of random actions may differ"
    text = shown(replace(ADVICE, changes=(replace(FASTER, objection=objection),)), capsys)
    assert objection in text
    assert "No change is offered" in text
    assert "model." not in text


@pytest.mark.parametrize(
    "refused",
    [
        replace(BY_HAND, objection="returns of random actions may differ"),
        replace(BY_HAND, problem="physics diverges in 1 of 9 motions"),
    ],
)
def test_a_change_of_the_mjcf_is_told_only_if_nothing_speaks_against_it(
    refused: PhysicsChange, capsys: pytest.CaptureFixture[str]
) -> None:
    assert BY_HAND.is_advised
    assert "In the MJCF" in shown(replace(ADVICE, changes=(BY_HAND,)), capsys)
    text = shown(replace(ADVICE, changes=(refused,)), capsys)
    assert (refused.objection or refused.problem or "") in text
    assert "In the MJCF" not in text


def test_the_length_of_the_episodes_that_policies_played_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "Played" not in shown(ADVICE, capsys)
    played = replace(ADVICE, trained_env_steps=36_864, played_steps=94)
    assert "36,864 env_steps; episodes of at most 94 control steps." in shown(played, capsys)


def test_what_there_was_no_time_for_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(replace(ADVICE, unmeasured=("solver CG", "cone elliptic")), capsys)
    assert "no time for solver CG and cone elliptic" in text
    assert "--time-limit" in text


def test_without_a_gain_or_a_measurement_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No change is faster." in shown(replace(ADVICE, changes=(SLOWER,)), capsys)
    assert "it has no wheels" in shown(PhysicsAdvice(problem="it has no wheels"), capsys)


def test_only_what_can_be_trained_on_a_task_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ExaminationRequest] = []

    def ask(
        requests: Sequence[ExaminationRequest], *, watch: side_by_side.Watch, **_: object
    ) -> list[ExaminationAnswer]:
        asked.extend(requests)
        watch(1, 1)
        return [ExaminationAnswer(problem="it took more than 3 s", is_late=True) for _ in requests]

    monkeypatch.setattr(side_by_side, "ask", ask)
    robot = ExaminationRequest(xml="a.xml", alone=True, init={"algo": "ppo"})
    environment = ExaminationRequest(env="CartPole-v1")
    fit = RobotCheck(path="a.xml", verdict="ok", request=robot, figures={})
    rows = [
        replace(fit, task="forward"),
        replace(fit, verdict="error", request=None),
        replace(fit, task_reason="it has no legs"),
        replace(fit, request=environment),
    ]
    seen: list[tuple[int, int]] = []
    given = measuring.advice(
        rows, cpu_s=2.0, time_limit_s=30, watch=lambda done, of: seen.append((done, of))
    )
    (request,) = asked
    assert (request.task, request.init) == ("forward", {})
    assert request.measurement is not None
    assert request.measurement.settings["cpu_s"] == 2.0
    assert request.measurement.settings["cpu"] is not None
    problems = [one and one.problem for one in given]
    remedy = "; give a larger --time-limit or a smaller --time"
    assert problems[:2] == [f"it took more than 3 s{remedy}", None]
    assert "it has no legs" in str(problems[2])
    assert "environment of its own" in str(problems[3])
    assert seen == [(0, 3)]
    assert [one.has_failed for one in given if one is not None] == [True, False, False]
    assert [row["advice"] is None for row in measuring.facts(rows, given)] == [
        False,
        True,
        False,
        False,
    ]
