"""What ``advise`` has measured about the physics of one robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.decoding import Message

MOST_CPU_S = 3600.0
"""CPU seconds of measuring that one robot is given at most."""
FASTER = 1.01
"""Lower bound of the speed-up above which a change counts as faster."""
NO_WORSE = 1.2
"""A change whose deviation is at most this multiple of the original's counts as no worse than what
the robot has."""
CERTAINLY_NO_WORSE = 1.5
"""And the upper bound of the interval of that multiple is at most this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianEstimate:
    """The median of repeated measurements, with an interval that covers the true median with 95 %
    probability.
    """

    median: float | None
    """None: not finite, because physics diverged in half of the measurements or more; likewise the
    bounds."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean of a figure of episodes on two robots."""

    before: float
    """On the original."""
    after: float
    low: float
    """95 % interval of the difference, in multiples of its noise: the standard deviation over the
    original's episodes, or 5 % of their mean where that is more."""
    high: float

    @property
    def is_small(self) -> bool:
        """Whether it is certainly smaller than the noise."""
        return self.low > -1.0 and self.high < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEffect:
    """What a policy of the original robot reaches on the changed one."""

    policy: Message
    """Such as ``random actions``."""
    returns: Difference
    lengths: Difference
    """In control steps."""

    @property
    def is_small(self) -> bool:
        return self.returns.is_small and self.lengths.is_small


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsChange:
    """One change to the robot, and what it would bring."""

    name: str
    edits: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the table ``model`` of a job, and their values; empty where only the MJCF itself can
    be changed."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task that must change with them, so that the control period stays."""
    mjcf: Message | None = None
    """What to change in the MJCF, where ``model`` cannot express it."""
    remark: Message | None = None
    problem: Message | None = None
    """Why there is no measurement, or where physics diverged."""
    speedup: MedianEstimate | None = None
    """env_steps per second, as a multiple of the original's."""
    deviation: MedianEstimate | None = None
    """As :attr:`PhysicsAdvice.deviation`."""
    relative: MedianEstimate | None = None
    """``deviation`` as a multiple of the original's from the same state."""
    effects: Sequence[PolicyEffect] = ()
    """Empty where it is not faster, or its motion speaks against it already."""
    objection: Message | None = None
    """Why the change is not offered, though it may be faster; None: nothing that was measured
    speaks against it."""

    @property
    def is_faster(self) -> bool:
        return (
            self.speedup is not None and self.speedup.low is not None and self.speedup.low > FASTER
        )

    @property
    def is_usable(self) -> bool:
        """Whether a job file can make it, and physics never diverged."""
        return bool(self.edits) and self.problem is None

    @property
    def is_no_worse(self) -> bool:
        return (
            self.relative is not None
            and self.relative.median is not None
            and self.relative.median <= NO_WORSE
            and self.relative.high is not None
            and self.relative.high <= CERTAINLY_NO_WORSE
        )

    @property
    def is_advised(self) -> bool:
        """Whether it is faster, and nothing that was measured speaks against it."""
        return self.is_faster and self.problem is None and self.objection is None

    @property
    def is_offered(self) -> bool:
        """Whether lines for the job file are printed."""
        return self.is_advised and self.is_usable


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactPair:
    """Two geoms that touch."""

    geoms: tuple[str, ...]
    contacts: float
    """Mean number of contacts in a state."""
    rows_share: float
    """Share of all rows that contacts give the constraint solver."""
    touching: float
    """Share of the states in which the two touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsAdvice:
    """The result for one robot on one task."""

    problem: Message | None = None
    """Why there is no advice."""
    has_failed: bool = False
    """Whether measuring failed, as at its time limit, and not because there is nothing to
    measure."""
    cpu_s: float = 0.0
    """CPU seconds of the measurement."""
    env_steps_per_s: float | None = None
    """Of the original: physics and task, without a policy, on one CPU."""
    size_m: float = 0.0
    """Diagonal of the box around the robot's geoms in its starting pose."""
    horizon_s: float = 0.0
    """Mean simulated time over which motions are compared: a second, or until the original's
    episode ends."""
    starts: int = 0
    """Number of starting states of these motions."""
    states: int = 0
    """Number of states in which contacts were counted."""
    deviation: MedianEstimate | None = None
    """Of the original from itself at a quarter of its timestep: the RMS, over moving bodies and
    control steps, of the distance between their centres of mass, in multiples of ``size_m``."""
    trained_env_steps: int = 0
    """How long the short-trained policy was trained; 0: no change needed it."""
    played_steps: int = 0
    """Control steps after which episodes of policies were cut off; 0: none was played."""
    unmeasured: Sequence[Message] = ()
    """Names of changes for which there was no time, as on a busy machine."""
    changes: Sequence[PhysicsChange] = ()
    """The fastest first."""
    contact_pairs: Sequence[ContactPair] = ()
    """Those with the most rows first."""
    notes: Sequence[Message] = ()
    own_xml: Message | None = None
    """The robot that the task brings, where the job names none: ``model`` changes a robot that the
    job names."""
