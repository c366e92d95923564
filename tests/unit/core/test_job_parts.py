"""Parts of jobs that features add: in specs, messages and records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from supervisor_helpers import make_spec

from orchestrator.core import feature, job_parts
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.feature import Feature
from orchestrator.core.job_parts import JobPart, News
from orchestrator.core.messages import Progress
from orchestrator.core.worker_spec import WorkerSpec

SPEC = make_spec("a-s0")


@dataclass(frozen=True, kw_only=True)
class LapSettings:
    laps: int = 0


@dataclass(frozen=True, kw_only=True)
class LapFacts:
    lap_ends: tuple[int, ...] = ()


def told(settings: LapSettings, before: LapFacts, facts: LapFacts) -> Iterator[News]:
    for end in facts.lap_ends[len(before.lap_ends) :]:
        yield News("lap", f"lap of {settings.laps} ended at {end}", {"env_steps": end})


LAP = JobPart(
    name="lap",
    settings=LapSettings,
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
    job_parts.job_parts.cache_clear()
    yield parts
    job_parts.job_parts.cache_clear()


@pytest.mark.usefixtures("given")
def test_a_part_stands_in_specs_and_decides_the_result() -> None:
    with_part = replace(SPEC, parts={"lap": LapSettings(laps=3)})
    content = json.loads(with_part.to_json())
    assert content["parts"] == {"lap": {"laps": 3}}
    assert json.loads(SPEC.to_json())["parts"] == {}
    assert WorkerSpec.from_json(with_part.to_json()) == with_part
    other = replace(SPEC, parts={"lap": LapSettings(laps=4)})
    assert len({one.fingerprint() for one in (SPEC, with_part, other)}) == 3


@pytest.mark.usefixtures("given")
def test_progress_and_exit_records_tell_of_parts() -> None:
    facts = {"lap": LapFacts(lap_ends=(100, 200))}
    progress = Progress(phase="training", parts=facts)
    assert Progress.from_line(progress.to_line()) == progress
    record = ExitRecord(code=0, message="", parts=facts)
    assert ExitRecord.from_json(record.to_json()) == record
    with pytest.raises(ValueError, match="of_another"):
        ExitRecord.from_json('{"code": 0, "message": "", "parts": {"of_another": {}}}')


@pytest.mark.usefixtures("given")
def test_columns_come_from_facts_and_are_empty_without() -> None:
    assert job_parts.column_names() == ["laps done"]
    facts = job_parts.read_facts({"lap": {"lap_ends": [1, 2, 3]}})
    assert job_parts.columns(facts) == {"laps done": 3}
    assert job_parts.columns({}) == {"laps done": None}


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


@pytest.mark.usefixtures("given")
def test_the_keys_are_those_of_the_job_file() -> None:
    assert job_parts.under_keys({"lap": LapSettings(laps=2)}) == {"lap.laps": 2}
    assert LAP.table(LapSettings(laps=2)) == {"laps": 2}
