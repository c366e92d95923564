"""What a report says of jobs that went on from policies of others."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.ledger.lineage import env_steps_before
from orchestrator.report.experiment_facts import ReportedJob

DIFFERENT = (
    "The policies that jobs started from had been trained for different numbers of env_steps, or there was none "
    "(“lineage” in the tables), so the returns are not comparable at equal env_steps."
)
UNKNOWN = (
    "Some jobs started from a policy of which it is not known for how many env_steps it had been trained, so the "
    "returns may not be comparable at equal env_steps."
)


def lineage_remark(jobs: Sequence[ReportedJob]) -> str:
    """A sentence for a caption where returns of ``jobs`` are not comparable; empty where they are, as
    far as policies before them are concerned. Where nothing is known of any of these, it is empty,
    too: as a rule it is the same policy.
    """
    trained = [job for job in jobs if job["env_steps"]]
    before = {env_steps_before(job["env_steps"], job["lineage_env_steps"]) for job in trained}
    known = before - {None}
    if len(known) > 1:
        return DIFFERENT
    return UNKNOWN if known and None in before else ""
