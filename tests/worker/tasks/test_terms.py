"""What built-in tasks observe is declared as terms, from which names, units, bounds and values
follow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.core.task_names import BUILT_IN, TASKS
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.tasks import Forward, States, Term, gymnasium_tasks

MJCF = Path(__file__).parents[3] / "mjcf"
ROBOTS = {
    "forward": "frog",
    "stand": "frog",
    "track": "frog",
    "reach": "arm",
    "balance": "balancer",
}
"""Task → a robot for it; the frog has muscles."""


@pytest.mark.parametrize("task", BUILT_IN)
def test_values_names_bounds_and_units_are_those_of_the_terms_in_their_order(task: str) -> None:
    is_ours = task in TASKS
    robot = MJCF / f"{ROBOTS[task]}.xml" if is_ours else gymnasium_tasks.default_xml(task)
    made = make_simulation(robot, task, {}, {}, n_envs=3, seed=0)
    made.reset()
    made.states.qvel[:] *= 1e4
    states = made.states
    terms = made.task.observation_terms
    values = [np.clip(term.values(states), *term.bounds) for term in terms.all]
    expected = np.concatenate(values, axis=1).astype(made.observation_dtype)
    assert made.task.observe(states).tobytes() == expected.tobytes()
    assert made.observation_names() == terms.names
    assert len(terms.names) == len(terms.units) == expected.shape[1]
    assert all(terms.units) or not is_ours
    forces = [pair for pair in zip(terms.names, terms.units, strict=True) if "force for" in pair[0]]
    assert {unit for _, unit in forces} == ({"N m"} if "Humanoid" in task else set())
    assert set(terms.fields) <= set(made.task.all_fields)


class Heated(Forward):
    """Observes one thing more than the task it is derived from."""

    def make_observation_terms(self) -> Sequence[Term]:
        return (*super().make_observation_terms(), self.heat())

    def heat(self) -> Term:
        return Term(
            names=["heat"],
            units=["K"],
            values=lambda states: np.square(states.qvel[:, :1]),
            limit=300.0,
        )


class Twice(Heated):
    def make_observation_terms(self) -> Sequence[Term]:
        return (*super().make_observation_terms(), self.heat())


class TooFew(Heated):
    def heat(self) -> Term:
        return Term(names=["a", "b"], units=["", ""], values=lambda states: states.qpos[:, :1])


class OneDimensional(Heated):
    def heat(self) -> Term:
        return Term(names=["heat"], units=["K"], values=lambda states: states.qpos[:, 0])


class NotFinite(Heated):
    def heat(self) -> Term:
        return Term(names=["heat"], units=["K"], values=lambda states: states.qpos[:, :1] * np.nan)


class Cold(Heated):
    def heat(self) -> Term:
        return Term(names=["heat"], units=["K"], values=lambda states: states.fields["heat"])


class Unmade(Heated):
    def heat(self) -> Term:
        raise KeyError("torso")


def test_a_term_that_a_users_task_adds_has_name_bounds_and_values() -> None:
    made = make_simulation(MJCF / "hopper.xml", "forward", {}, {}, n_envs=2, seed=0)
    task = Heated(made.model, made.task.options)
    own: Any = Simulation(made.model, task, robot="hopper.xml", n_envs=2, seed=0)
    own.reset()
    names = own.observation_names()
    assert names == [*(made.observation_names() or ()), "heat"]
    assert task.policy_terms is not None
    assert task.policy_terms.limits[:, -1].tolist() == [-300, 300]
    hot = task.observe(States(own.states.qpos, np.full_like(own.states.qvel, 20.0)))
    assert hot[:, -1].tolist() == [300, 300]


WRONG: dict[type[Heated], str] = {
    Twice: "names come twice: heat; leave out the second term, or",
    TooFew: "the term a and b gives floating-point numbers of shape (3, 1); expected floating-point numbers "
    "of shape (3, 2)",
    OneDimensional: "the term heat gives floating-point numbers of shape (3,); expected",
    NotFinite: "the term heat gives floating-point numbers of shape (3, 1), of which number 0 is not finite",
    Cold: "the term heat raises KeyError: 'heat'",
    Unmade: "making it raises KeyError: 'torso'",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_what_is_wrong_with_a_term_that_a_users_task_adds_is_said(kind: type[Heated]) -> None:
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(ValueError, match=re.escape(WRONG[kind])) as raised:
        make_simulation(MJCF / "hopper.xml", name, {}, {}, n_envs=1, seed=0)
    assert name in str(raised.value)
