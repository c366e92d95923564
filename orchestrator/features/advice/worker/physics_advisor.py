"""Measures, for one robot on its task, what changes to its physics bring in speed and change in its
motion.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.robot_sources import converter_of
from orchestrator.core.text import count
from orchestrator.features.advice.physics_advice import (
    MOST_CPU_S,
    PhysicsAdvice,
    PhysicsChange,
    PolicyEffect,
)
from orchestrator.features.advice.worker import (
    physics_candidates,
    trajectory_deviation,
)
from orchestrator.features.advice.worker.collision_census import CollisionCensus
from orchestrator.features.advice.worker.interleaved_speed import (
    SpeedComparison,
    SpeedSlice,
    random_actions,
    state_rows,
    steps_of_slice,
)
from orchestrator.features.advice.worker.median_estimates import median_estimate
from orchestrator.features.advice.worker.physics_candidates import ChangeCandidate, PhysicsUse
from orchestrator.features.advice.worker.policy_effects import (
    EPISODES,
    LEAST_PLAYED_S,
    PolicyEffects,
)
from orchestrator.features.advice.worker.short_training import ShortTrainedPolicy
from orchestrator.features.advice.worker.trajectory_deviation import MotionTest
from orchestrator.worker.envs.batch_interface import SimulationState
from orchestrator.worker.envs.model_loading import for_simulation, load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel import contacts
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.mjspec.spec_elements import EditError
from orchestrator.worker.robots import converted_robot, made_robot
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.file_collector import BundleError
from orchestrator.worker.robots.model_edits import RobotVariants, WithoutEffectError
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks import Task, gymnasium_tasks, make_task
from orchestrator.worker.tasks.base import control_steps

N_ENVS = 8
"""Environments of the measurement: the default of a job."""
SAMPLE_EVERY_S = 0.4
"""Simulated time between two states of all environments that are kept."""
MOST_SAMPLES = 500
HORIZON_S = 1.0
"""Simulated time over which motions are compared."""
REFERENCE = 4
"""The reference's physics steps for one of the original."""
LEAST_STARTS = 6
MOST_STARTS = 40
LEAST_RATIOS = 6
MOST_RATIOS = 100
SAMPLE_SHARE = 0.1
"""Share of the CPU time for sampling states."""
MOTION_SHARE = 0.3
"""Share of the CPU time for comparing motions."""
TRAINING_SHARE = 0.2
"""Share of the CPU time for training a policy."""
PLAYING_SHARE = 0.15
"""Share of the CPU time for episodes of policies; the rest is for speed."""
LEAST_PLAYED_STEPS = 50
"""Control steps of an episode that is compared, however little time there is."""
WALL_SHARE = 0.8
"""Share of the time limit after which nothing new is begun, so that what was measured is told."""
SAME_PERIOD = 1e-3
SHOWN_PAIRS = 5
LARGE_DEVIATION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotVersion:
    """A robot as it is, or with a change."""

    model: mujoco.MjModel
    task: Task
    new_options: Mapping[str, Any]
    """Options of the task that had to change."""


def measured(
    request: ExaminationRequest,
    answer: ExaminationAnswer,
    simulation: Simulation,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The values of a :class:`.PhysicsAdvice` by name.

    :param settings: measuring takes about ``cpu_s`` of CPU time, on the CPU ``cpu``; ``limit_s``
        seconds of a clock on the wall are the limit.
    """
    # A change may make physics diverge: that is counted, and NumPy need not warn of it.
    with (
        _on_cpu(settings["cpu"]),
        np.errstate(all="ignore"),
        contextlib.ExitStack() as cleanup,
    ):
        xml = _robot_file(request, cleanup)
        variants = cleanup.enter_context(RobotVariants(collect(xml)))
        folder = Path(cleanup.enter_context(TemporaryFolder()))
        deadline = time.monotonic() + WALL_SHARE * settings["limit_s"]
        advisor = _Advisor(request, str(answer.task), simulation, variants, folder, deadline)
        advice = advisor.advice(settings["cpu_s"])
        is_named = request.xml is not None or request.robot_maker is not None
        own_xml = None if is_named else str(xml)
        return dataclasses.asdict(dataclasses.replace(advice, own_xml=own_xml))


@contextlib.contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)


def _robot_file(request: ExaminationRequest, cleanup: contextlib.ExitStack) -> Path:
    """The robot without the job's ``model``, to which the changes are added."""
    if request.robot_maker is not None:
        return made_robot.make(request, Path(cleanup.enter_context(TemporaryFolder())))
    if request.xml is None:
        return gymnasium_tasks.default_xml(str(request.task))
    converter = converter_of(request.xml, request.robot_settings)
    if converter is None:
        return Path(request.xml)
    folder = Path(cleanup.enter_context(TemporaryFolder()))
    return converted_robot.convert(converter, request, folder).xml


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlayed:
    """Policies were not played."""

    why: str
    is_late: bool = False
    """Whether there was no time left for it."""


NO_TIME = NotPlayed(why="there was no time to play policies with it", is_late=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredChange:
    candidate: ChangeCandidate
    change: PhysicsChange
    version: RobotVersion | None = None
    """The changed robot, of one that nothing speaks against so far, for what is measured of it
    later."""
    moves_alike: bool = False
    """Whether its motions deviate by the same bits as the original's."""

    def told_as(self, change: PhysicsChange) -> _MeasuredChange:
        """With all of this change that is told; of the robot nothing more is measured."""
        return _MeasuredChange(candidate=self.candidate, change=change)


class _Advisor:
    def __init__(
        self,
        request: ExaminationRequest,
        task: str,
        simulation: Simulation,
        variants: RobotVariants,
        folder: Path,
        deadline: float,
    ) -> None:
        """:param folder: an empty one, for a copy of the robot.
        :param deadline: on the monotonic clock; nothing new is begun after it.
        """
        self._begun = time.thread_time()
        self._request = request
        self._task = task
        self._variants = variants
        self._folder = folder
        self._deadline = deadline
        self._unmeasured: list[str] = []
        self._version = RobotVersion(model=simulation.model, task=simulation.task, new_options={})
        self._simulation = self._simulation_of(self._version)
        self._rng = np.random.default_rng(0)
        self._states: list[SimulationState] = []
        self._trained_env_steps = 0
        self._played_steps = 0
        self._enough_s = 0.0
        """About the CPU seconds for all of the measurement in which policies could be played for long
        enough."""
        self._step_cpu_s = 0.0
        """CPU seconds of one control step of all environments."""

    def advice(self, budget_s: float) -> PhysicsAdvice:
        """:param budget_s: of CPU time."""
        model = self._version.model
        task = self._version.task
        use = self._sample(SAMPLE_SHARE * budget_s)
        candidates = list(physics_candidates.candidates(model, use))
        test = self._motion_test(len(candidates) + 1, MOTION_SHARE * budget_s)
        size_m = trajectory_deviation.size(model, task.pose)
        reference_model = copy.copy(model)
        reference_model.opt.timestep /= REFERENCE
        reference = test.motion(reference_model, REFERENCE * task.frame_skip)
        motion = test.motion(model, task.frame_skip)
        own = trajectory_deviation.deviations(motion, reference, test.is_compared, size_m)
        comparison = _Comparison(test=test, reference=reference, own=own, size_m=size_m)
        changes = self._measure_all(candidates, comparison, budget_s)
        return PhysicsAdvice(
            cpu_s=self._spent_s,
            env_steps_per_s=N_ENVS / self._step_cpu_s,
            size_m=size_m,
            horizon_s=float(test.is_compared.sum(axis=0).mean()) * task.step_s,
            starts=len(test.starts),
            states=use.census.states,
            deviation=trajectory_deviation.estimate(own),
            trained_env_steps=self._trained_env_steps,
            played_steps=self._played_steps,
            unmeasured=self._unmeasured,
            changes=sorted(changes, key=_speed, reverse=True),
            contact_pairs=use.census.contact_pairs(SHOWN_PAIRS),
            notes=_notes(model, use, own),
        )

    @property
    def _spent_s(self) -> float:
        """CPU seconds since the beginning."""
        return time.thread_time() - self._begun

    def _measure_all(
        self, candidates: Sequence[ChangeCandidate], comparison: _Comparison, budget_s: float
    ) -> list[PhysicsChange]:
        """Measure each change by itself, then the best ones of them together.

        What is left of the time is shared among those that are still to be measured.
        """
        measured: list[_MeasuredChange] = []
        for_speed_s = (1 - TRAINING_SHARE - PLAYING_SHARE) * budget_s
        for number, candidate in enumerate(candidates):
            still_to_do = len(candidates) - number + 1  # the last one is that of all together
            cpu_s = (for_speed_s - self._spent_s) / still_to_do
            found = self._measure(candidate, comparison, cpu_s)
            if found is not None:
                measured.append(found)
        n_contenders = sum(one.change.is_advised for one in measured)
        if not n_contenders:
            return [one.change for one in measured]
        effects = self._policy_effects(budget_s, n_contenders + 1)
        measured = [self._with_effects(one, effects) for one in measured]
        together = _together(measured)
        if together is not None:
            found = self._measure(together, comparison, budget_s - self._spent_s)
            if found is not None:
                measured.append(self._with_effects(found, effects))
        return [one.change for one in measured]

    def _is_in_time(self) -> bool:
        return time.monotonic() < self._deadline

    def _policy_effects(self, budget_s: float, n_contenders: int) -> PolicyEffects | NotPlayed:
        """Trains the policy, and plays it and random actions on the original."""
        if not self._is_in_time():
            return NO_TIME
        try:
            return self._played_on_original(budget_s, n_contenders)
        except Exception as error:  # the user's task may raise anything
            why = f"policies cannot be played on the original: {failures.describe(error)}"
            return NotPlayed(why=why)

    def _played_on_original(self, budget_s: float, n_contenders: int) -> PolicyEffects | NotPlayed:
        """As :meth:`_policy_effects`; what goes wrong is raised."""
        task = self._version.task
        trained = ShortTrainedPolicy(
            self._file,
            self._task,
            self._request.task_options,
            cpu_s=TRAINING_SHARE * budget_s,
            deadline=self._deadline,
        )
        self._trained_env_steps = trained.env_steps
        if not self._is_in_time():
            return NO_TIME
        step_cpu_s = EPISODES / N_ENVS * self._step_cpu_s + trained.act_cpu_s(EPISODES)
        affordable = PLAYING_SHARE * budget_s / (2 * (n_contenders + 1) * step_cpu_s)
        longest = task.max_episode_steps
        enough_steps = min(longest, control_steps(LEAST_PLAYED_S, task.step_s))
        effects = PolicyEffects(
            trained,
            lambda: self._episodes(self._version),
            most_steps=min(longest, max(LEAST_PLAYED_STEPS, int(affordable))),
            enough_steps=enough_steps,
        )
        self._played_steps = effects.most_steps
        self._enough_s = budget_s * enough_steps / affordable
        return effects

    def _episodes(self, version: RobotVersion) -> Simulation:
        return self._simulation_of(version, n_envs=EPISODES, autoreset=False)

    def _with_effects(
        self, measured: _MeasuredChange, effects: PolicyEffects | NotPlayed
    ) -> _MeasuredChange:
        """``measured`` with what policies reach on it, where nothing else speaks against it."""
        change = measured.change
        if not change.is_advised or measured.version is None:
            return measured
        if isinstance(effects, NotPlayed) or not self._is_in_time():
            not_played = effects if isinstance(effects, NotPlayed) else NO_TIME
            if not_played.is_late:
                self._unmeasured.append(measured.candidate.name)
            return measured.told_as(dataclasses.replace(change, objection=not_played.why))
        try:
            found = effects.on(self._episodes(measured.version))
        except Exception as error:  # the user's task may raise anything
            why = f"policies cannot be played with it: {failures.describe(error)}"
            return measured.told_as(dataclasses.replace(change, objection=why))
        objection = _objection_of_policies(found)
        if objection is None and effects.are_cut_short and not measured.moves_alike:
            objection = (
                f"episodes were played for {effects.most_steps} of up to {self._version.task.max_episode_steps:,} "
                f"control steps, too few to judge it: {_longer(self._enough_s)}"
            )
        return measured.told_as(dataclasses.replace(change, effects=found, objection=objection))

    def _simulation_of(
        self, version: RobotVersion, *, n_envs: int = N_ENVS, autoreset: bool = True
    ) -> Simulation:
        return Simulation(
            version.model,
            version.task,
            robot=self._request.robot or self._task,
            n_envs=n_envs,
            seed=0,
            on_divergence="end-episode",
            autoreset=autoreset,
        )

    def _sample(self, cpu_s: float) -> PhysicsUse:
        """States of episodes under random actions, and what they use of the physics."""
        simulation = self._simulation
        task = self._version.task
        census = CollisionCensus(simulation.model)
        most_iterations = 0
        steps = 0
        stepping_s = 0.0
        every = max(1, round(SAMPLE_EVERY_S / task.step_s))
        simulation.reset()
        begun = time.thread_time()
        while len(self._states) < MOST_SAMPLES and (
            not self._states or time.thread_time() - begun < cpu_s
        ):
            for actions in random_actions(simulation, self._rng, every):
                started = time.thread_time()
                simulation.step(actions)
                stepping_s += time.thread_time() - started
                data = simulation.data(steps % N_ENVS)
                census.add(data)
                most_iterations = max(most_iterations, int(data.solver_niter.max()))
                steps += 1
            self._states.append(simulation.get_state())
        self._step_cpu_s = stepping_s / steps
        return PhysicsUse(
            census=census,
            most_iterations=most_iterations,
            reads_sensors="sensordata" in task.all_fields,
            frame_skip=task.frame_skip,
            disabled=int(mujoco.MjSpec.from_file(str(self._file)).option.disableflags),
        )

    def _motion_test(self, versions: int, cpu_s: float) -> MotionTest:
        """As many starts as there is time for with so many ``versions`` beside the original and the
        reference.
        """
        task = self._version.task
        periods = max(1, round(HORIZON_S / task.step_s))
        cost_s = periods * self._step_cpu_s / N_ENVS * (1 + REFERENCE + versions)
        affordable = int(cpu_s / cost_s)
        rows = [(state, env) for state in range(len(self._states)) for env in range(N_ENVS)]
        n_starts = min(len(rows), max(LEAST_STARTS, min(MOST_STARTS, affordable)))
        chosen = self._rng.choice(len(rows), n_starts, replace=False).tolist()
        state = state_rows(self._states, [rows[number] for number in sorted(chosen)])
        episodes = self._simulation_of(self._version, n_envs=n_starts, autoreset=False)
        episodes.set_state(state)
        controls = np.empty((periods, n_starts, self._version.model.nu))
        is_compared = np.ones((periods, n_starts), bool)
        for period, actions in enumerate(random_actions(episodes, self._rng, periods)):
            controls[period] = task.actions.ctrl(task.actions.taken(actions))
            is_compared[period + 1 :, episodes.step(actions).done] = False
        return MotionTest(
            starts=state["physics"],
            controls=controls,
            centres=trajectory_deviation.centres(self._version.model),
            is_compared=is_compared,
        )

    def _measure(
        self, candidate: ChangeCandidate, comparison: _Comparison, cpu_s: float
    ) -> _MeasuredChange | None:
        """Measure a change; None where it changes nothing of the robot.

        :param cpu_s: for the motion and the speed together; the least number of ratios is measured
            in any case.
        """
        if not self._is_in_time():
            self._unmeasured.append(candidate.name)
            return None
        until = time.thread_time() + cpu_s
        change = PhysicsChange(
            name=candidate.name, edits=candidate.edits, mjcf=candidate.mjcf, remark=candidate.remark
        )
        if not candidate.edits and not candidate.excluded:
            return _MeasuredChange(candidate=candidate, change=change)
        try:
            version = self._robot_version(candidate)
            simulation = self._simulation_of(version)
            _check_same_states(self._simulation, simulation)
        except WithoutEffectError:
            return None
        except (EditError, BundleError, ValueError) as error:
            problem = " ".join(str(error).split())
            change = dataclasses.replace(change, edits={}, problem=problem)
            return _MeasuredChange(candidate=candidate, change=change)
        motion = comparison.test.motion(version.model, version.task.frame_skip)
        deviations = trajectory_deviation.deviations(
            motion, comparison.reference, comparison.test.is_compared, comparison.size_m
        )
        fallen = int(np.isinf(deviations).sum())
        speed = SpeedComparison(self._simulation, simulation)
        while len(speed.ratios) < LEAST_RATIOS or (
            len(speed.ratios) < MOST_RATIOS and time.thread_time() < until
        ):
            speed.compare(self._slice())
        change = dataclasses.replace(
            change,
            task_options=version.new_options,
            problem=f"physics diverges in {fallen} of {count(len(deviations), 'motion')}"
            if fallen
            else None,
            speedup=median_estimate(speed.ratios),
            deviation=trajectory_deviation.estimate(deviations),
            relative=trajectory_deviation.relative_estimate(deviations, comparison.own),
        )
        moves_alike = np.array_equal(deviations, comparison.own, equal_nan=True)
        objection = None if moves_alike else _objection_to_motion(change, comparison.own)
        change = dataclasses.replace(change, objection=objection)
        kept = version if change.is_advised else None  # a model may be large
        return _MeasuredChange(
            candidate=candidate, change=change, version=kept, moves_alike=moves_alike
        )

    def _slice(self) -> SpeedSlice:
        state = self._states[int(self._rng.integers(len(self._states)))]
        steps = steps_of_slice(self._step_cpu_s)
        return SpeedSlice(state=state, actions=random_actions(self._simulation, self._rng, steps))

    def _robot_version(self, candidate: ChangeCandidate) -> RobotVersion:
        """:raises EditError, BundleError, ValueError: a job file could not make this change."""
        edits = {**self._request.model_edits, **candidate.edits}
        model = (
            self._model_with_exclusions(candidate.excluded)
            if candidate.excluded
            else self._edited_model(edits)
        )
        options = self._request.task_options
        new_options = dict[str, Any]()
        task = make_task(self._task, model, options)
        if candidate.frame_skip is not None and not self._is_same_period(task):
            new_options = {"frame_skip": candidate.frame_skip}
            task = make_task(self._task, model, {**options, **new_options})
        if not self._is_same_period(task):
            raise ValueError("the task would act at other times")
        return RobotVersion(model=model, task=task, new_options=new_options)

    def _is_same_period(self, task: Task) -> bool:
        period_s = self._version.task.step_s
        return abs(task.step_s - period_s) <= SAME_PERIOD * period_s

    def _edited_model(self, edits: Mapping[str, Any]) -> mujoco.MjModel:
        """The robot that a job with these ``edits`` would train, through all that a job file's
        edits go through.
        """
        robot = self._variants.edited_robot(edits)
        with TemporaryFolder() as folder:
            model = load_model(robot.bundle.write(Path(folder)))
        robot.check(model)
        return model

    def _model_with_exclusions(self, bodies: Sequence[tuple[int, int]]) -> mujoco.MjModel:
        spec = mujoco.MjSpec.from_file(str(self._file))
        spec.compile()
        by_number = {body.id: body for body in spec.bodies}
        for number, body in by_number.items():
            body.name = body.name or f"unnamed body {number}"
        for first, second in bodies:
            exclude = spec.add_exclude()
            exclude.bodyname1 = by_number[first].name
            exclude.bodyname2 = by_number[second].name
        return for_simulation(spec.compile())

    @functools.cached_property
    def _file(self) -> Path:
        """A copy of the original, with the job's own edits."""
        bundle = self._variants.bundle
        if self._request.model_edits:
            bundle = self._variants.edited_robot(self._request.model_edits).bundle
        return bundle.write(self._folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    test: MotionTest
    reference: Floats
    own: Floats
    """Deviations of the original."""
    size_m: float


def _check_same_states(original: Simulation, changed: Simulation) -> None:
    """:raises ValueError: the policy would see something else, or states cannot be compared."""
    if changed.observation_size != original.observation_size:
        raise ValueError(
            f"the task would observe {changed.observation_size} values in place of {original.observation_size}"
        )
    if changed.physics(0).shape != original.physics(0).shape:
        raise ValueError("its state would have another size")


def _together(measured: Sequence[_MeasuredChange]) -> ChangeCandidate | None:
    """The fastest change of every group that is offered; None if there are fewer than two."""
    best: dict[str, _MeasuredChange] = {}
    for one in measured:
        if one.change.is_offered:
            rival = best.get(one.candidate.group)
            if rival is None or _speed(one.change) > _speed(rival.change):
                best[one.candidate.group] = one
    if len(best) < 2:
        return None
    chosen = [one.candidate for one in best.values()]
    return ChangeCandidate(
        name="together",
        group="together",
        remark="; ".join(candidate.name for candidate in chosen),
        edits={key: value for candidate in chosen for key, value in candidate.edits.items()},
        frame_skip=next(
            (candidate.frame_skip for candidate in chosen if candidate.frame_skip), None
        ),
    )


def _objection_to_motion(change: PhysicsChange, own: Floats) -> str | None:
    """What speaks against a change of motion before policies are played.

    :param own: deviations of the original.
    """
    if not change.is_faster:
        return None
    if _is_large(own):
        return "the original's own deviation is so large that nobody can tell what the change does"
    return None if change.is_no_worse else "its motion deviates more"


def _is_large(own: Floats) -> bool:
    known = own[~np.isnan(own)]
    return len(known) > 0 and bool(np.median(known) > LARGE_DEVIATION)


def _objection_of_policies(effects: Sequence[PolicyEffect]) -> str | None:
    """What the change does to the first policy that notices it, in words; None: none notices it."""
    effect = next((one for one in effects if not one.is_small), None)
    if effect is None:
        return None
    figure, difference = (
        ("episodes", effect.lengths) if effect.returns.is_small else ("returns", effect.returns)
    )
    return (
        f"{figure} of {effect.policy} may differ: {difference.before:.4g} before, "
        f"{difference.after:.4g} after (by {difference.low:.2f} to {difference.high:.2f} standard "
        "deviations)"
    )


def _longer(enough_s: float) -> str:
    """What to do where so many CPU seconds would be enough."""
    needed = math.ceil(enough_s)
    if needed <= MOST_CPU_S:
        return f"give about --time {needed}"
    return (
        f"that would take about {needed:,} CPU seconds, more than --time may be; compare trainings with and without it "
        "instead"
    )


def _speed(change: PhysicsChange) -> float:
    """0 where it is not known."""
    if change.speedup is None or change.speedup.median is None:
        return 0.0
    return change.speedup.median


def _notes(model: mujoco.MjModel, use: PhysicsUse, own: Floats) -> list[str]:
    census = use.census
    notes = list[str]()
    possible = contacts.possible_pairs(model, contacts.masks(model))
    if possible:
        notes.append(
            f"{count(len(possible), 'pair')} of geoms may collide; {len(census.tested) or 'none'} of them came near "
            f"each other, and {len(census.touching) or 'none'} touched. A trained policy may make contacts that random "
            "actions do not"
        )
    if use.most_iterations:
        notes.append(
            f"the constraint solver took at most {count(use.most_iterations, 'iteration')}"
        )
    known = own[~np.isnan(own)]
    if len(known) < len(own):
        notes.append(
            f"physics diverges in {len(own) - len(known)} of {len(own)} motions at a quarter of the timestep"
        )
    if _is_large(own):
        notes.append(
            "the original's own deviation is large: contacts make its motion chaotic, or its timestep is too long; "
            "smaller effects of a change cannot be seen"
        )
    return notes
