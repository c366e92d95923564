"""Bare physics of a training's steps: the same states, controls and resets in a loop of
``mj_step``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import cpu_timed

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray
    from stable_baselines3.common.vec_env import DummyVecEnv

    from orchestrator.worker.envs.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """States and controls of a batch of environments over some steps; states are
    ``mjSTATE_INTEGRATION``."""

    before: NDArray[Any]
    """``(n_envs, state)``"""
    controls: NDArray[Any]
    """``(n_steps, n_envs, nu)``"""
    starts: Sequence[Sequence[tuple[int, NDArray[Any]]]]
    """For each step, the environments that were reset after it, with their new states."""
    after: NDArray[Any]
    """``(n_envs, nq)``: the positions at the end."""


class BarePhysics:
    """A loop of ``mj_step`` over one ``MjData`` per environment."""

    def __init__(self, model: mujoco.MjModel, n_envs: int, frame_skip: int) -> None:
        import mujoco

        self._model = model
        self._frame_skip = frame_skip
        self._datas = [mujoco.MjData(model) for _ in range(n_envs)]

    def seconds(self, trajectory: Trajectory) -> float:
        """CPU seconds that the trajectory's physics takes.

        :raises RuntimeError: the loop ended in other positions, so that its physics was not the
            same.
        """
        import mujoco
        import numpy as np

        model = self._model
        datas = self._datas
        frame_skip = self._frame_skip
        whole = mujoco.mjtState.mjSTATE_INTEGRATION
        step = mujoco.mj_step

        def walk() -> None:
            for data, state in zip(datas, trajectory.before, strict=True):
                mujoco.mj_setState(model, data, state, whole)
            for controls, started in zip(trajectory.controls, trajectory.starts, strict=True):
                for data, control in zip(datas, controls, strict=True):
                    data.ctrl[:] = control
                    step(model, data, frame_skip)
                for env, state in started:
                    mujoco.mj_resetData(model, datas[env])
                    mujoco.mj_setState(model, datas[env], state, whole)

        seconds, _ = cpu_timed(walk)
        if not np.array_equal(trajectory.after, [data.qpos for data in datas]):
            raise RuntimeError(
                "the bare loop ended in other positions than the environments: their physics is not comparable"
            )
        return seconds


class Shadow:
    """Bare physics of the steps that environments have just taken, resets included.

    :param venv: the learner's: a ``MujocoVecEnv``, or a ``DummyVecEnv`` of gymnasium's own MuJoCo
        robots.
    :param twin: an identical environment, which repeats the same steps.
    """

    def __init__(self, venv: Any, twin: Any) -> None:
        self._venv = venv
        self._twin = twin
        self._batched = hasattr(twin, "simulation")
        self._state: Any = None
        if self._batched:
            model = twin.simulation.model
            frame_skip = twin.simulation.task.frame_skip
        else:
            twin.reset()
            base = twin.envs[0].unwrapped
            model = base.model
            frame_skip = base.frame_skip
        self._bare = BarePhysics(model, venv.num_envs, frame_skip)

    def remember(self) -> None:
        """Save the state from which the steps begin."""
        from orchestrator.worker.envs import env_state

        self._state = self._venv.get_state() if self._batched else env_state.save(self._venv.envs)

    def seconds(self, actions: NDArray[Any]) -> float:
        """CPU seconds of the physics of the steps since :meth:`remember`.

        :param actions: ``(n_steps, n_envs, nu)`` as the environments received them.
        """
        from orchestrator.worker.envs import env_state

        if self._batched:
            self._twin.set_state(self._state)
            return self._bare.seconds(trajectory_of_simulation(self._twin.simulation, actions))
        env_state.restore(self._twin.envs, self._state)
        return self._bare.seconds(trajectory_of_gymnasium(self._twin, actions))


def trajectory_of_simulation(simulation: Simulation, actions: NDArray[Any]) -> Trajectory:
    """Step ``simulation`` through ``actions``, ``(n_steps, n_envs, nu)`` within their bounds."""
    import numpy as np

    taken = simulation.task.actions
    before = simulation.get_state()["arrays"]["physics"]
    starts = []
    for action in actions:
        envs = simulation.step(action).done.nonzero()[0]
        states = simulation.get_state()["arrays"]["physics"] if len(envs) else before
        starts.append([(int(env), states[env]) for env in envs])
    controls = np.stack([taken.ctrl(taken.taken(action)) for action in actions])
    return Trajectory(
        before=before, controls=controls, starts=starts, after=simulation.states.qpos.copy()
    )


def trajectory_of_gymnasium(venv: DummyVecEnv, actions: NDArray[Any]) -> Trajectory:
    """Step gymnasium's own MuJoCo environments through ``actions``, ``(n_steps, n_envs, nu)``
    within their bounds."""
    import mujoco
    import numpy as np

    def state(env: Any) -> NDArray[Any]:
        model = env.unwrapped.model
        data = env.unwrapped.data
        values = np.empty(mujoco.mj_stateSize(model, whole))
        mujoco.mj_getState(model, data, values, whole)
        return values

    whole = mujoco.mjtState.mjSTATE_INTEGRATION
    before = np.stack([state(env) for env in venv.envs])
    starts = []
    for action in actions:
        done = venv.step(action)[2]
        starts.append([(int(env), state(venv.envs[env])) for env in done.nonzero()[0]])
    after = np.stack([env.unwrapped.data.qpos for env in venv.envs])  # type: ignore[attr-defined]
    return Trajectory(before=before, controls=actions, starts=starts, after=after)
