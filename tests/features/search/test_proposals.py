"""The next point of a search: what the sampler is asked and told, where it is saved, and which
trial is the parent."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.features.search.declaration.spec import (
    Dimension,
    SchedulerSpec,
    SearchSpec,
)
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.watchdog import Watchdog

SPEC = SearchSpec(
    space=(
        Dimension(key="ppo.gamma", low=0.9, high=0.99),
        Dimension(key="policy_kwargs.net_arch", choices=([32, 32], [64, 64])),
    ),
    sampler="random",
    objectives=("eval_mean",),
    directions=("maximize",),
    trials=100,
    start="nearest",
)


def proposals(folder: Path, spec: SearchSpec = SPEC, bracket: int = 1) -> Proposals:
    return Proposals(
        spec, folder / "sampler.pickle", folder, bracket, Watchdog(), tells_at_rungs=True
    )


def history(
    points: Sequence[Mapping[str, Any]], values: Sequence[float | None], jobs_at_once: int = 2
) -> History:
    """Of trials that are over, but for those whose value is None."""
    found = History()
    found.apply(SearchEvent(kind="began", content={"lanes": jobs_at_once}, id=1))
    for number, (point, value) in enumerate(zip(points, values, strict=True)):
        content: dict[str, Any] = {"point": point, "jobs": [f"t{number}"]}
        found.apply(SearchEvent(kind="asked", content=content, id=found.last_id + 1))
        if value is not None:
            content = {"values": [value], "measures": [], "env_steps": 1, "why": ""}
            found.apply(
                SearchEvent(kind="over", trial=number, content=content, id=found.last_id + 1)
            )
    return found


def point(gamma: float, width: int = 32) -> dict[str, Any]:
    return {"ppo.gamma": gamma, "policy_kwargs.net_arch": [width, width]}


def test_a_parent_has_the_same_network_whatever_is_nearer_or_better(tmp_path: Path) -> None:
    done = history([point(0.95), point(0.91, 64), point(0.99)], [3.0, 1.0, 2.0])
    nearest = proposals(tmp_path)
    assert nearest.parent(point(0.96), done).number == 0  # type: ignore[union-attr]
    assert nearest.parent(point(0.95, 64), done).number == 1  # type: ignore[union-attr]
    best = proposals(tmp_path, dataclasses.replace(SPEC, start="best"))
    assert best.parent(point(0.99), done).number == 0  # type: ignore[union-attr]
    assert best.parent(point(0.99, 64), done).number == 1  # type: ignore[union-attr]
    assert nearest.parent(point(0.95, 64), history([point(0.95)], [3.0])) is None


@pytest.mark.parametrize(
    "body", ["raise ValueError('lost')", "return {'ppo.gamma': 0.9}"], ids=["raises", "lacks a key"]
)
def test_a_sampler_of_the_user_that_fails_is_named(
    tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "own_raises" if "raise" in body else "own_lacks"
    lines = [
        "class Own:",
        "    def __init__(self, **_): pass",
        f"    def ask(self, number): {body}",
    ]
    (tmp_path / f"{module}.py").write_text("\n".join([*lines, "    def tell(self, *_): pass"]))
    monkeypatch.syspath_prepend(tmp_path)
    own = proposals(tmp_path, dataclasses.replace(SPEC, sampler=f"{module}:Own"))
    with pytest.raises(UsageError, match=f"{module}:Own"):
        own.ask(0)


def test_a_saved_sampler_that_is_none_stops_a_search_once(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, sampler="sobol")
    earlier = proposals(tmp_path, spec)
    (tmp_path / "sampler.pickle").write_bytes(pickle.dumps((0, object())))
    earlier.restore(last_id=0)
    with pytest.raises(UsageError, match='"sobol" has failed in its method ask'):
        earlier.ask(0)
    again = proposals(tmp_path, spec)
    again.restore(last_id=0)
    assert again.ask(0) == proposals(tmp_path / "new", spec).ask(0)


@pytest.mark.parametrize(
    ("objectives", "by", "stands"),
    [
        (["eval_mean"], "ep_rew_mean", True),
        (["distance_m"], "ep_rew_mean", False),
        (["distance_m / energy_j"], "distance_m/energy_j", True),
        (["distance_m", "energy_j"], "distance_m", False),
    ],
)
def test_the_value_at_a_rung_is_told_where_it_stands_for_the_one_at_the_end(
    objectives: list[str], by: str, stands: bool
) -> None:
    lowest = dataclasses.replace(
        SPEC, objectives=tuple(objectives), directions=("minimize",) * len(objectives)
    )
    scheduler = SchedulerSpec(kind="asha", min_env_steps=100, by=by)
    assert scheduler.stands_for_end(lowest) == stands
    assert scheduler.measures_training == (by != "ep_rew_mean")
    is_by_objective = scheduler.is_by_objective(lowest)
    assert scheduler.direction(lowest) == ("minimize" if is_by_objective else "maximize")


def restored(sampler: Proposals, events: Sequence[SearchEvent]) -> None:
    """As a searcher does when it is started."""
    done = History()
    sampler.restore(events[-1].id)
    for event in events:
        done.apply(event)
        sampler.replay(event, done)


def test_a_saved_sampler_that_knows_more_than_the_ledger_is_not_used(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, sampler="cmaes", space=SPEC.space[:1])
    pytest.importorskip("cmaes")
    told, events = (
        proposals(tmp_path, spec),
        [SearchEvent(kind="began", content={"lanes": 1}, id=1)],
    )
    told._saving.wait(0.0)
    asked = [told.ask(index) for index in range(3)]
    told.save(last_id=9)
    assert (tmp_path / "sampler.pickle").exists()
    again = proposals(tmp_path, spec)
    restored(again, events)
    assert [again.ask(index) for index in range(3)] == asked
    longer = [
        SearchEvent(kind="asked", content={"point": each, "jobs": []}, id=2 + n)
        for n, each in enumerate(asked)
    ]
    again = proposals(tmp_path, spec)
    restored(again, [*events, *longer, SearchEvent(kind="ended", content={}, id=9)])
    assert again.ask(3) == told.ask(3)


def test_in_fixed_order_a_point_waits_for_all_but_the_last_trials_of_the_first_session(
    tmp_path: Path,
) -> None:
    fixed = proposals(tmp_path, dataclasses.replace(SPEC, order="fixed"))
    points = [point(0.9 + number / 100) for number in range(6)]
    assert fixed.is_next_known(history(points[:4], [None] * 4))
    assert not fixed.is_next_known(history(points[:5], [None] * 5))
    first = history(points, [1.0, 2.0, None, None, None, None])
    assert fixed.is_next_known(first)
    assert [trial.number for trial in fixed.to_tell(first)] == [0, 1]
    first.apply(
        SearchEvent(kind="began", content={"lanes": 16}, id=99)
    )  # resumed on a larger machine
    assert [trial.number for trial in fixed.to_tell(first)] == [0, 1]


def test_a_retried_trial_has_not_failed() -> None:
    found = history([point(0.9), point(0.91)], [1.0, None])
    failed = {"values": None, "measures": None, "env_steps": 1, "why": "lost"}
    found.apply(SearchEvent(kind="over", trial=1, content=failed, id=12))
    assert found.whys == {1: "lost"}
    found.apply(SearchEvent(kind="retried", trial=1, content={}, id=13))
    assert found.whys == {}
