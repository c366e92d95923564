"""Messages in files, the batch script, and ``[slurm]`` of the job file."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest
from supervisor_helpers import make_job

from orchestrator.core import job_parts
from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.messages import Progress
from orchestrator.executors.executor import AttemptId, Exited, Placed, Progressed
from orchestrator.features.slurm import mailbox
from orchestrator.features.slurm.allocation import cores_of, memory_of, task_of
from orchestrator.features.slurm.batch_script import batch_script, job_name
from orchestrator.features.slurm.mailbox import Inbox, Outbox
from orchestrator.features.slurm.pilot_messages import (
    EndOrder,
    JoinOrder,
    LaunchOrder,
    PilotBeat,
    PilotHello,
)
from orchestrator.features.slurm.pilot_slots import PilotSlots
from orchestrator.features.slurm.slurm_executor import SlurmExecutor
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.machine.topology import Cpu, Machine

HANDLE = AttemptId("hopper-s0", 3)


MESSAGES = [
    PilotHello(
        node="n1",
        cores=4,
        gpus=1,
        memory_mib=2048,
        cpu_model="a CPU",
        versions={"torch": "2.9", "x": None},
    ),
    LaunchOrder(
        attempt=HANDLE,
        job_dir="/a b/jobs/hopper-s0",
        spec_digest="0a",
        cores=2,
        gpus=0.5,
        threads=1,
        ranks=2,
        log_mib=64,
        nice=0,
        fork=True,
        why_exec="",
        command=None,
        environment={"A": None, "B": "1"},
    ),
    EndOrder(HANDLE, kill=True),
    JoinOrder("abc"),
    PilotBeat(),
    Placed(attempt=HANDLE, node="n1", cpus=(0, 1), gpus=("0",), pid=7, pid_start=1.5),
    Progressed(HANDLE, Progress(phase="training", env_steps=7)),
    Exited(HANDLE, 11, lost="the time limit of its pilot is near"),
]


def test_every_message_arrives_as_it_was_sent(tmp_path: Path) -> None:
    outbox, inbox = Outbox(tmp_path / "box"), Inbox(tmp_path / "box")
    assert inbox.receive() == []
    outbox.send(*MESSAGES)
    assert inbox.receive() == MESSAGES
    assert inbox.receive() == []
    outbox.send(PilotBeat())
    assert inbox.receive() == [PilotBeat()]


def test_progress_arrives_with_what_is_told_of_features(tmp_path: Path) -> None:
    outbox, inbox = Outbox(tmp_path / "box"), Inbox(tmp_path / "box")
    parts = {
        name: part.facts() for name, part in job_parts.job_parts().items() if part.facts is not None
    }
    told = Progressed(HANDLE, Progress(phase="training", env_steps=7, parts=parts))
    outbox.send(told)
    assert inbox.receive() == [told]


def test_a_line_that_was_cut_off_is_skipped_and_what_is_half_written_awaited(
    tmp_path: Path,
) -> None:
    outbox, inbox = Outbox(tmp_path / "box"), Inbox(tmp_path / "box")
    file = tmp_path / "box.0"
    file.write_bytes(b'\n{"PilotBe')
    assert inbox.receive() == []
    outbox.send(JoinOrder("x"))
    assert inbox.receive() == [JoinOrder("x")]
    with file.open("ab") as end:
        end.write(b'[]\n{"Nobody": {}}\n{"PilotBeat": 3}\nnull\n{"PilotBeat": {"x": 1}}\n')
    outbox.send(PilotBeat())
    assert inbox.receive() == [PilotBeat()]


def test_a_long_file_is_continued_in_the_next_one_and_removed_once_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "LONGEST_BYTES", 100)
    outbox, inbox = Outbox(tmp_path / "box"), Inbox(tmp_path / "box")
    sent = [JoinOrder(f"number {number}") for number in range(20)]
    for message in sent:
        outbox.send(message)
    assert inbox.receive() == sent
    assert len(list(tmp_path.iterdir())) <= 1
    assert mailbox.has_sent(tmp_path / "box", JoinOrder) or not list(tmp_path.iterdir())


def batch_value(lines: list[str], option: str) -> str:
    """As sbatch reads it: a backslash escapes the next sign, also within quotes."""
    (text,) = (line.split("=", 1)[1] for line in lines if line.startswith(f"#SBATCH --{option}="))
    (value,) = shlex.split(text, comments=True)
    return value


def test_the_script_has_what_the_job_file_says() -> None:
    settings = SlurmSettings(
        array=4,
        partition="compute",
        time_s=1.5 * 86400,
        cpus_per_task=16,
        mem_mib=32768,
        gpus=2,
        setup=("module load cuda",),
        options={
            "mail-type": "END",
            "exclusive": None,
            "comment": "two words",
            "licenses": "a\\b, 'c'",
        },
    )
    lines = batch_script(
        settings, name="robots-1a2b", folder=Path("/runs/r 1%/slurm"), pilots=4
    ).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {
        "#SBATCH --job-name=robots-1a2b",
        "#SBATCH --array=0-3",
        '#SBATCH --output="/runs/r 1%%/slurm/pilot-%A_%a.log"',
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --partition=compute",
        "#SBATCH --time=1-12:00:00",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --mem=32768M",
        "#SBATCH --gres=gpu:2",
        "#SBATCH --mail-type=END",
        "#SBATCH --exclusive",
        '#SBATCH --comment="two words"',
    } <= set(lines)
    assert batch_value(lines, "licenses") == "a\\b, 'c'"
    assert lines.index("module load cuda") < len(lines) - 1
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith("'/runs/r 1%/slurm'")


def test_runs_of_one_experiment_have_names_of_their_own() -> None:
    one, other = (job_name("robots", Path(path)) for path in ("/runs/a", "/runs/b"))
    assert one != other
    assert one.startswith("robots-")


def machine(cpus: int, quota: float | None = None) -> Machine:
    places = tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(cpus))
    return Machine(cpus=places, quota=quota, memory_total_mib=8000)


@pytest.mark.parametrize(
    ("cpus", "quota", "given", "cores"),
    [
        (64, None, "4", 4),
        (4, None, "4", 4),
        (4, 2.0, "4", 2),
        (2, None, "4", 4),
        (8, None, None, 8),
    ],
)
def test_a_pilot_offers_what_slurm_gave_it(
    cpus: int, quota: float | None, given: str | None, cores: int
) -> None:
    variables = {} if given is None else {"SLURM_CPUS_ON_NODE": given}
    assert cores_of(machine(cpus, quota), variables) == cores


def test_memory_and_task_of_a_pilot() -> None:
    assert memory_of(machine(2), {"SLURM_MEM_PER_NODE": "4096"}) == 4096
    assert memory_of(machine(2), {"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "2"}) == 2048
    assert memory_of(machine(2), {}) == 8000
    assert (
        task_of({"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "15"})
        == "12_3"
    )


def test_a_job_is_refused_only_for_what_slurm_gives_a_pilot_for_certain() -> None:
    job = make_job("a-s0", gpus=1, memory_mib=8000)
    settings = SlurmSettings(gpus=0, mem_mib=4000)
    by_key = {one.where: one.message for one in problems_of(settings, job)}
    assert "a pilot has 4000 MiB, as mem in [slurm] says" in by_key["jobs[0].resources.memory"]
    assert "a pilot has 0, as gpus in [slurm] says" in by_key["jobs[0].resources.gpus"]
    for options in (
        {"tres-per-task": "gres/gpu:2"},
        {"gpus-per-socket": "1"},
        {"gpus-per-node": "2"},
        {"gres": "gpu:a100:1"},
    ):
        assert problems_of(SlurmSettings(options=options), job) == []


def problems_of(settings: SlurmSettings, job: Job) -> list[Problem]:
    backend = object.__new__(SlurmExecutor)
    backend._settings = settings
    return backend.problems(job)


def test_more_room_is_needed_for_what_finds_none_but_not_beyond_max_parallel() -> None:
    slots = PilotSlots(max_parallel=1)
    slots.add("pilot", cores=2, gpus=0, memory_mib=1000)
    slot = slots.acquire(1)
    assert slot is not None
    assert slots.acquire(1) is None
    assert not slots.has_refused(math.inf)
    slots.release(slot)
    assert slots.acquire(3) is None
    assert slots.has_refused(math.inf)
    assert slots.unfit.startswith("3 cores")
