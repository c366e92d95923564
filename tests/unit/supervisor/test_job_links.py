"""``after`` and ``init = "job:NAME"``: which jobs a name stands for, circles, and the order of
launch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobfile_helpers import problems, resolve
from supervisor_helpers import make_job

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.supervisor import launch_order

ENV = {"env": "CartPole-v1"}
RATES = {"ppo.learning_rate": [1e-4, 3e-4]}


def links(
    place: Path, *jobs: dict[str, Any], **defaults: Any
) -> dict[str, tuple[tuple[str, ...], str | None]]:
    """By job: for which it waits, and from which it starts."""
    found = resolve(place, *({**ENV, **job} for job in jobs), defaults=defaults).jobs
    return {job.job_id: (job.spec.after, job.spec.init_job) for job in found}


def test_a_name_stands_for_all_of_its_jobs_and_an_id_for_one(tmp_path: Path) -> None:
    found = links(
        tmp_path,
        {"name": "walk", "after": ["stand", "run-s1"]},
        {"name": "stand", "seeds": [0, 1]},
        {"name": "run", "seeds": [0, 1]},
    )
    assert found["walk-s0"] == (("stand-s0", "stand-s1", "run-s1"), None)
    assert found["stand-s0"] == ((), None)


def test_a_job_starts_from_the_one_with_its_seed_and_its_values_and_waits_for_it(
    tmp_path: Path,
) -> None:
    stages = [{"name": "stand"}, {"name": "walk", "init": "job:stand"}]
    found = links(tmp_path, *stages, seeds=[0, 1], matrix=RATES)
    assert found["walk-lr3e-4-s1"] == (("stand-lr3e-4-s1",), "stand-lr3e-4-s1")
    single = links(
        tmp_path,
        {"name": "stand", "seeds": [7]},
        {"name": "walk", "init": "job:stand", "seeds": [0, 1]},
    )
    assert single["walk-s1"] == (("stand-s7",), "stand-s7"), "of one job, there is no choice"


def test_a_job_that_has_problems_of_its_own_is_no_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        links(
            tmp_path, {"name": "stand", "n_envs": 0, "env": 3}, {"name": "walk", "after": ["stand"]}
        )
    assert not [message for place, message in problems(error) if "jobs[1]" in place]


def test_only_the_job_that_it_starts_from_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    plain, waits, starts = resolve(tmp_path, *(
        {**ENV, "name": name, **extra}
        for name, extra in (("a", {}), ("b", {"after": ["a"]}), ("c", {"init": "job:a"}))
    )).jobs  # fmt: skip
    same = dataclasses.replace(waits.spec, job_id=plain.job_id, name=plain.spec.name)
    assert same.fingerprint() == plain.spec.fingerprint()
    fetched = dataclasses.replace(starts.spec, init_sha256="ab")
    assert fetched.fingerprint() == starts.spec.fingerprint()
    assert dataclasses.replace(fetched, init="job:b-s0").fingerprint() != fetched.fingerprint()


# -- the order of launch


def chain(*links: tuple[str, tuple[str, ...]], steps: int = 1000) -> list[Job]:
    return [
        make_job(name, spec={"after": after, "total_timesteps": steps}) for name, after in links
    ]


@given(st.permutations(["a", "b", "c", "d", "e", "f"]), st.data())
def test_parents_come_first_and_the_rest_stays_in_order(
    order: list[str], data: st.DataObject
) -> None:
    jobs = chain(
        *(
            (name, tuple(n for n in "abcdef" if n < name and data.draw(st.booleans())))
            for name in order
        )
    )
    ordered = launch_order.parents_first(jobs)
    places = {job.job_id: number for number, job in enumerate(ordered)}
    assert sorted(places) == list("abcdef")
    assert all(places[parent] < places[job.job_id] for job in jobs for parent in job.spec.after)
    free = [job.job_id for job in jobs if not job.spec.after]
    assert [job.job_id for job in ordered if job.job_id in free] == free


def test_to_the_time_of_a_job_counts_that_of_the_jobs_behind_it() -> None:
    jobs = [*chain(("long", ()), steps=1500), *chain(("second", ("first",)), ("first", ()))]
    ordered = launch_order.launch_order(jobs, "longest-first", lambda job: job.spec.total_timesteps)
    assert [job.job_id for job in ordered] == ["first", "long", "second"]
