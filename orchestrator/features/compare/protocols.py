"""What values were measured after: env_steps of a training, and of the policies before it. Values
that were not reached alike are not comparable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.core.text import listed
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.lineage import env_steps_before

MOST_NAMED = 5
"""Bodies and protocols in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a value was measured after."""

    env_steps: int
    """Of the training itself."""
    earlier_env_steps: int | None
    """Of the jobs from whose policies it started, one after another; 0: from nothing; None: it
    started from a policy of which that is not known."""

    def __str__(self) -> str:
        text = f"{self.env_steps:,} env_steps"
        if self.earlier_env_steps is None:
            return f"{text} after an unknown number of the policy that it started from"
        earlier = f"{self.earlier_env_steps:,} of the policy that it started from"
        return f"{text} after {earlier}" if self.earlier_env_steps else f"{text} from nothing"

    def order(self) -> tuple[int, int]:
        """Less than that of a longer training; an unknown number counts as none."""
        return self.env_steps, self.earlier_env_steps or 0


Protocols: TypeAlias = Mapping[str, Collection[Protocol]]
"""By body, or by the name of a job without its seed."""


def protocol_of(row: SummaryRow) -> Protocol:
    env_steps = row["env_steps"]
    earlier = env_steps_before(env_steps, row["lineage_env_steps"])
    return Protocol(env_steps=env_steps, earlier_env_steps=earlier)


def longest_first(protocols: Iterable[Protocol]) -> list[Protocol]:
    return sorted(protocols, key=Protocol.order, reverse=True)


def remark_on_protocols(names: Sequence[str], sides: Sequence[Protocols]) -> list[str]:
    """That a difference of values may be one of training; none where all were reached alike.

    :param names: of the ``sides``, what is compared, with the same bodies.
    """
    of_bodies = {body: {one for side in sides for one in side[body]} for body in sides[0]}
    how = "were not"
    bodies = [body for body, protocols in of_bodies.items() if len(protocols) > 1]
    if not bodies:
        how = "may not have been"
        bodies = [body for body, protocols in of_bodies.items() if any(map(is_unknown, protocols))]
    if not bodies:
        return []
    of_some = f" of {listed(bodies, MOST_NAMED)}" if len(bodies) < len(of_bodies) else ""
    texts = []
    for name, side in zip(names, sides, strict=True):
        protocols = longest_first({one for body in bodies for one in side[body]})
        texts.append(f"{name}: {listed_protocols(protocols)}")
    return [
        f"The values{of_some} {how} reached alike, so a difference may be one of training:"
        f" {'; '.join(texts)}."
    ]


def is_unknown(protocol: Protocol) -> bool:
    return protocol.earlier_env_steps is None


def listed_protocols(protocols: Sequence[Protocol]) -> str:
    shown = [str(protocol) for protocol in protocols[:MOST_NAMED]]
    if left := len(protocols) - len(shown):
        shown.append(f"{left:,} others")
    return ", or ".join(shown)
