"""Parts of jobs that features add: in specs, messages and records, flat beside the program's own
fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_spec

from orchestrator.core import feature, job_parts
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.feature import Feature
from orchestrator.core.job_parts import JobPart, News
from orchestrator.core.messages import Progress
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.summary import TIMES

SPEC = make_spec("a-s0")


@dataclass(frozen=True, kw_only=True)
class LapSettings:
    laps: int = 0


@dataclass(frozen=True, kw_only=True)
class LapFacts:
    lap_ends: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Clashing:
    lap_ends: int = 3


@dataclass(frozen=True, kw_only=True)
class Required:
    needed: int


@dataclass(frozen=True, kw_only=True)
class Listed:
    ends: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Located:
    where: Path = Path("/")


@dataclass(frozen=True, kw_only=True)
class Seed:
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Mine:
    of_mine: int = 0


@dataclass(kw_only=True)
class Thawed:
    changeable: int = 0


def broken(*_: Any) -> Any:
    raise ZeroDivisionError


def told(settings: LapSettings, before: LapFacts, facts: LapFacts) -> Iterator[News]:
    for end in facts.lap_ends[len(before.lap_ends) :]:
        yield News("lap", f"lap of {settings.laps} ended at {end}", {"env_steps": end})


@dataclass(frozen=True, kw_only=True)
class Limit:
    lap_limit: int | None = 5


@dataclass(frozen=True, kw_only=True)
class Since:
    lapping_since: int | None = None


LAP = JobPart(
    name="lap",
    settings=LapSettings,
    keys={"laps": "number"},
    facts=LapFacts,
    loop="nowhere",
    columns={"laps done": lambda facts: len(facts.lap_ends)},
    news=told,
)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[JobPart]]:
    """The parts that the only feature gives; to be changed before they are asked for."""
    parts = [LAP]
    only = Feature(name="laps", about="It counts laps.", job_parts=lambda: parts)
    monkeypatch.setattr(feature, "features", lambda: (only,))
    monkeypatch.setattr(feature, "_problems", {})
    job_parts.job_parts.cache_clear()
    yield parts
    job_parts.job_parts.cache_clear()


@pytest.mark.usefixtures("given")
def test_a_part_stands_flat_in_specs_and_decides_the_result() -> None:
    with_part = replace(SPEC, parts={"lap": LapSettings(laps=3)})
    content = json.loads(with_part.to_json())
    assert content["laps"] == 3
    assert content.keys() - json.loads(SPEC.to_json()).keys() == {"laps"}
    assert "parts" not in content
    assert WorkerSpec.from_json(with_part.to_json()) == with_part
    other = replace(SPEC, parts={"lap": LapSettings(laps=4)})
    assert len({one.fingerprint() for one in (SPEC, with_part, other)}) == 3


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize("value", [0, None])
def test_a_part_that_does_nothing_is_not_there(value: int | None) -> None:
    content = {**json.loads(SPEC.to_json()), "laps": value}
    spec = WorkerSpec.from_json(json.dumps(content))
    assert spec == SPEC
    assert spec.fingerprint() == SPEC.fingerprint()


@pytest.mark.usefixtures("given")
def test_a_wrong_field_of_a_spec_is_named() -> None:
    content = {**json.loads(SPEC.to_json()), "seed": None}
    with pytest.raises(ValueError, match="seed: expected a whole number"):
        WorkerSpec.from_json(json.dumps(content))
    for text in ("[]", "3", "", "[" * 100_000):
        with pytest.raises(ValueError, match=r"expected|nested|Expecting"):
            WorkerSpec.from_json(text)


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize("key", ["lap", "parts", "unknown"])
def test_a_spec_of_a_feature_that_is_gone_can_be_shown_but_not_trained(key: str) -> None:
    content = {**json.loads(SPEC.to_json()), key: {"a": [1]}}
    spec = WorkerSpec.from_json(json.dumps(content))
    assert json.loads(spec.to_json()) == content
    assert spec.fingerprint() != SPEC.fingerprint()
    with pytest.raises(ValueError, match=f"was declared with {key}, which nothing here can read"):
        spec.refuse_unknown()
    SPEC.refuse_unknown()


@pytest.mark.usefixtures("given")
def test_invalid_facts_keep_nobody_from_the_rest_of_a_message() -> None:
    line = b'{"phase": "training", "env_steps": 7, "lap_ends": [NaN]}'
    assert Progress.from_line(line) == Progress(phase="training", env_steps=7)
    [problem] = feature.problems()
    assert (
        "the feature laps cannot read what a job tells of the part lap of jobs: ValueError: lap_ends"
        in problem
    )
    with pytest.raises(ValueError, match="parts: unknown field"):
        Progress.from_line(b'{"phase": "training", "parts": {}}')
    assert len({Progress(phase="training"), Progress(phase="training")}) == 1, "it is hashed"


@pytest.mark.usefixtures("given")
def test_checkpoints_hold_facts_by_part_and_those_of_earlier_versions_are_read() -> None:
    facts = {"lap": LapFacts(lap_ends=(100, 200))}
    saved = {"iteration": 3, "parts": job_parts.saved_facts(facts)}
    assert saved["parts"] == {"lap": {"lap_ends": (100, 200)}}
    assert job_parts.restored_facts(saved) == facts
    assert job_parts.restored_facts({"iteration": 3, "lap_ends": (100, 200)}) == facts
    assert job_parts.restored_facts({"iteration": 3, "parts": {}}) == {}


@pytest.mark.usefixtures("given")
def test_progress_and_exit_records_tell_of_parts_and_records_outlive_their_feature() -> None:
    facts = {"lap": LapFacts(lap_ends=(100, 200))}
    progress = Progress(phase="training", parts=facts)
    assert Progress.from_line(progress.to_line()) == progress
    record = ExitRecord(code=0, message="", parts=facts)
    assert json.loads(record.to_json())["lap_ends"] == [100, 200]
    assert ExitRecord.from_json(record.to_json()) == record
    with_unknown = json.dumps({**json.loads(record.to_json()), "of_another": [1]})
    assert ExitRecord.from_json(with_unknown) == record
    with pytest.raises(ValueError, match="of_another: unknown field"):
        Progress.from_line(b'{"phase": "training", "of_another": 1}')


@pytest.mark.usefixtures("given")
def test_columns_come_from_facts_and_are_empty_without() -> None:
    assert job_parts.column_names() == ["laps done"]
    of_record = job_parts.facts_in({"code": 0, "lap_ends": [1, 2, 3]})
    assert job_parts.columns(of_record) == {"laps done": 3}
    for damaged in ({}, {"lap_ends": None}, {"lap_ends": "many"}):
        assert job_parts.columns(job_parts.facts_in(damaged)) == {"laps done": None}


@pytest.mark.usefixtures("given")
def test_news_are_what_came_since_the_message_before() -> None:
    settings = {"lap": LapSettings(laps=3)}
    facts = [{"lap": LapFacts(lap_ends=ends)} for ends in ((), (100,), (100, 200, 300))]
    assert job_parts.news(settings, {}, facts[2]) == [], "an earlier attempt told them"
    assert [one.values for one in job_parts.news(settings, facts[1], facts[2])] == [
        {"env_steps": 200},
        {"env_steps": 300},
    ]
    assert job_parts.news({}, facts[0], facts[1]) == []


def test_what_admits_none_keeps_it(given: list[JobPart]) -> None:
    def tell(settings: Limit, before: Since, facts: Since) -> Iterator[News]:
        if before != facts:
            yield News("lap", f"began at {facts.lapping_since}", {})

    given[:] = [replace(LAP, settings=Limit, facts=Since, columns={}, news=tell)]
    spec = replace(SPEC, parts={"lap": Limit(lap_limit=None)})
    assert WorkerSpec.from_json(spec.to_json()) == spec
    lines = [Progress(phase="training", parts={"lap": Since(lapping_since=at)}) for at in (None, 7)]
    before, now = (Progress.from_line(line.to_line()) for line in lines)
    assert [one.text for one in job_parts.news(spec.parts, before.parts, now.parts)] == [
        "began at 7"
    ]


@pytest.mark.parametrize("is_unused", [lambda settings: settings == LapSettings(), broken])
def test_settings_that_cannot_be_read_are_unknown(given: list[JobPart], is_unused: Any) -> None:
    given[:] = [replace(LAP, is_unused=is_unused)]
    laps = "three" if is_unused is not broken else 3
    content = {**json.loads(SPEC.to_json()), "laps": laps}
    spec = WorkerSpec.from_json(json.dumps(content))
    assert (spec.parts, spec.unknown) == ({}, {"laps": laps})
    with pytest.raises(ValueError, match="declared with laps, which nothing here can read"):
        spec.refuse_unknown()
    assert len(feature.problems()) == 1


@pytest.mark.usefixtures("given")
def test_the_keys_are_those_of_the_job_file() -> None:
    assert job_parts.under_keys({"lap": LapSettings(laps=2)}) == {"lap.number": 2}
    assert LAP.table(LapSettings(laps=2)) == {"number": 2}


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (replace(LAP, name="Lap 1"), "this is no name of a table"),
        (LAP, "there is one already"),
        (replace(LAP, name="b", settings=Clashing, facts=None), "lap has a field lap_ends, too"),
        (replace(LAP, name="b", settings=Required, facts=None), "a field has no default"),
        (replace(LAP, name="b", settings=Thawed, facts=None), "Thawed is no frozen dataclass"),
        (replace(LAP, name="b", settings=int, facts=None), "int is no frozen dataclass"),
        (replace(LAP, name="b", settings=Listed, facts=None), "is not the same after JSON"),
        (replace(LAP, name="b", settings=Located, facts=None), "of a type that JSON does not have"),
        (
            replace(LAP, name="b", settings=Seed, facts=None, columns={}),
            "the program itself has a field seed",
        ),
        (replace(LAP, name="b", settings=Mine, facts=None), "lap has a column laps done, too"),
        (
            replace(LAP, name="b", settings=Mine, facts=None, columns={"started": lambda _: 0}),
            "the program itself has a column started",
        ),
        (
            replace(LAP, name="b", settings=Mine, facts=None, columns={"wall_s": lambda _: 0}),
            "the program itself has a column wall_s",
        ),
        (3, "AttributeError"),
    ],
)
def test_a_part_that_cannot_be_used_is_left_out(given: list[JobPart], part: Any, why: str) -> None:
    given.append(part)
    assert list(job_parts.job_parts()) == ["lap"]
    [problem] = feature.problems()
    assert why in problem


@pytest.mark.parametrize(
    ("column", "tell"),
    [
        (broken, broken),
        (lambda _: {1}, lambda *_: 3),
        (lambda _: True, lambda *_: ["ended"]),
        (lambda _: b"", lambda *_: [News("lap", "ended", {"job_id": "b"})]),
        (lambda _: [], lambda *_: [News("lap", "ended", {"laps": {1}})]),
    ],
)
def test_what_fails_in_a_feature_harms_no_job(given: list[JobPart], column: Any, tell: Any) -> None:
    given[:] = [replace(LAP, columns={"laps done": column}, news=tell)]
    facts = {"lap": LapFacts()}
    assert job_parts.columns(facts) == {"laps done": None}
    assert job_parts.news({"lap": LapSettings()}, facts, facts) == []
    filled, told_of = feature.problems()
    assert filled.startswith("the feature laps fills no column of the part lap of jobs: ")
    assert told_of.startswith("the feature laps tells no news of the part lap of jobs: ")


def test_what_fails_often_is_one_problem(given: list[JobPart]) -> None:
    steps = iter(range(3))

    def fails(_: Any) -> int:
        raise ValueError(f"bad step {next(steps)}")

    given[:] = [replace(LAP, columns={"laps done": fails})]
    for _ in range(3):
        job_parts.columns({"lap": LapFacts()})
    (problem,) = feature.problems()
    assert "ValueError: bad step 0" in problem


def test_a_number_that_is_not_finite_is_an_empty_cell(given: list[JobPart]) -> None:
    given[:] = [replace(LAP, columns={"laps done": lambda _: float("nan")})]
    assert job_parts.columns({"lap": LapFacts()}) == {"laps done": None}
    assert feature.problems() == ()


def test_the_columns_of_the_program_are_those_of_a_summary() -> None:
    optional = SummaryRow.__optional_keys__
    assert SummaryRow.__annotations__.keys() - optional == job_parts.SUMMARY_COLUMNS
    assert TIMES.keys() == job_parts.TIME_COLUMNS
