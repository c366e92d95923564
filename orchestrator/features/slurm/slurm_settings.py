"""What ``[slurm]`` means: the pilots that ``--executor slurm`` submits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.features.slurm.slurm_table import SlurmTable
from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems, suggestion

_SET = "is set by the program"
_ONE_TASK = "cannot be set: a pilot is one task on one node"
_ONE_CLUSTER = "cannot be set: pilots are followed on one cluster"
_NO_START = "cannot be set: pilots would not start"
REFUSED = {
    "job-name": _SET,
    "output": _SET,
    "error": _SET,
    "open-mode": _SET,
    "parsable": _SET,
    "wrap": _SET,
    "signal": _SET,
    "ntasks": _ONE_TASK,
    "nodes": _ONE_TASK,
    "ntasks-per-node": _ONE_TASK,
    "clusters": _ONE_CLUSTER,
    "cluster-constraint": _ONE_CLUSTER,
    "wait": _NO_START,
    "test-only": _NO_START,
    "help": _NO_START,
    "usage": _NO_START,
    "version": _NO_START,
}
"""Options of sbatch that a job file cannot set, and why."""
SBATCH_OPTIONS = (
    "acctg-freq",
    "batch",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "comment",
    "container",
    "contiguous",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "exclude",
    "exclusive",
    "export",
    "export-file",
    "extra",
    "extra-node-info",
    "get-user-env",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "hold",
    "ignore-pbs",
    "kill-on-invalid-dep",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nice",
    "no-kill",
    "no-requeue",
    "nodefile",
    "nodelist",
    "overcommit",
    "oversubscribe",
    "power",
    "prefer",
    "priority",
    "profile",
    "propagate",
    "quiet",
    "reboot",
    "requeue",
    "reservation",
    "sockets-per-node",
    "spread-job",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-task",
    "uid",
    "use-min-nodes",
    "wckey",
)
"""Further ones; a newer Slurm may have others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """``[slurm]``; None: as the cluster has it."""

    array: int = 1
    """Number of pilots."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_s: float | None = None
    cpus_per_task: int | None = None
    mem_mib: int | None = None
    gpus: int = 0
    constraint: str | None = None
    setup: tuple[str, ...] = ()
    """Lines of the batch script."""
    options: Mapping[str, str | None] = field(default_factory=dict)
    """Further options of sbatch; None for one without a value."""


def read_slurm(table: Mapping[str, Any], problems: Problems) -> SlurmSettings:
    """:param table: the keys that the user has written, each valid by itself."""
    own = {
        name.replace("_", "-"): name
        for name in SlurmTable.model_fields
        if name not in ("setup", "options")
    }
    for name in table.get("options", {}):
        where = f"slurm.options.{name}"
        if name in REFUSED:
            problems.add(where, REFUSED[name])
        elif name in own:
            problems.add(where, f"has a key of its own: {own[name]} in [slurm]")
        elif name not in SBATCH_OPTIONS and (close := suggestion(name, SBATCH_OPTIONS)) is not None:
            problems.add(where, f'unknown option of sbatch; did you mean "{close}"?')
    named = {"time": "time_s", "mem": "mem_mib"}
    values: dict[str, Any] = {
        named.get(name, name): tuple(value) if name == "setup" else value
        for name, value in table.items()
    }
    return SlurmSettings(**values)


TABLE = FeatureTable(
    name="slurm", about="Batch jobs of --executor slurm.", model=SlurmTable, read=read_slurm
)
