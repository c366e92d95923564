"""A real Slurm for tests: munged, slurmctld and two slurmd on this machine, configured for that."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

NODES = ("node0", "node1")
CPUS = 4
"""Of each node, as Slurm is told; as is the next."""
MEMORY_MIB = 8400
PATIENCE_S = 60.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "setpriv")
SBIN = f"/usr/sbin{os.pathsep}/sbin"

CONFIGURATION = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=bf_interval=2,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout=15
SlurmctldTimeout=30
MessageTimeout=5
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
DefMemPerCPU=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory={memory}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory={memory}
PartitionName=main Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=node0,node1 PriorityTier=10 MaxTime=INFINITE State=UP
"""
"""Jobs that are requeued start again after ``cred_expire``, 10 s."""


class SlurmCluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (root / "state").mkdir()
        for node in NODES:
            (root / f"spool-{node}").mkdir()
        self.conf.write_text(
            CONFIGURATION.format(
                root=root,
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.geteuid()).pw_name,
                ports=_free_ports(3),
                cpus=CPUS,
                memory=MEMORY_MIB,
            )
        )
        key = root / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)

    def start(self) -> None:
        root = self.root
        options = [
            f"--socket={root}/munge.socket",
            f"--key-file={root}/munge.key",
            f"--pid-file={root}/munge.pid",
        ]
        options += [
            f"--log-file={root}/munge.log",
            f"--seed-file={root}/munge.seed",
            "--force",
            "--foreground",
        ]
        self._start("munged", "munged", *options)
        until((root / "munge.socket").exists)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(lambda: self.node_states() == {"idle"})

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        until(
            lambda: (
                self.run("scontrol", "ping").returncode == 0
                and "UP" in self.run("scontrol", "ping").stdout
            )
        )

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def _start(self, name: str, *command: str) -> None:
        """It ends with this process, also if that is killed."""
        command = ("setpriv", "--pdeathsig", "TERM", *command)
        with (self.root / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SLURM_CONF": str(self.conf),
            "PATH": f"{os.environ['PATH']}{os.pathsep}{SBIN}",
        }

    def end_controller(self) -> None:
        """By SIGTERM: it saves what it knows only every five seconds."""
        self._end("slurmctld", signal.SIGTERM)

    def _end(self, name: str, number: int) -> None:
        popen = self._processes.pop(name)
        popen.send_signal(number)
        popen.wait()

    def kill_slurmd(self, node: str) -> None:
        """What it has started goes on."""
        self._end(node, signal.SIGKILL)

    def kill_node(self, name: str, task: str) -> None:
        """With everything of a task that it runs: its pilot's workers and what watches over them
        end with it."""
        pids = self.pids(task)
        self.kill_slurmd(name)
        signal_all(pids, signal.SIGKILL)

    def pids(self, task: str, program: bytes = b"") -> list[int]:
        """The processes of a task that runs: its batch step, and what that has started.

        :param program: a part of their command lines.
        """
        job = self.run("squeue", "--noheader", f"--jobs={task}", "--format=%A").stdout.strip()
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [pid for pid in pids if _is_of(pid, job, self.conf, program)]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )

    def node_states(self) -> set[str]:
        lines = self.run(
            "sinfo", "--noheader", "--Node", "--partition=main", "--format=%t"
        ).stdout.split()
        return set(lines) if len(lines) == len(NODES) else set()

    def queue(self) -> dict[str, str]:
        """Task → state, of those that have not ended."""
        rows = self.run("squeue", "--noheader", "--array", "--format=%i|%T").stdout.split()
        return dict(row.split("|") for row in rows)

    def end(self) -> None:
        self.run("scancel", f"--user={pwd.getpwuid(os.geteuid()).pw_name}")
        with contextlib.suppress(TimeoutError):
            until(lambda: not self.queue())
        for popen in self._processes.values():
            popen.send_signal(signal.SIGTERM)
        for popen in self._processes.values():
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def until(condition: Callable[[], object]) -> None:
    """Wait for what is certain to come. :raises TimeoutError: it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("in vain")
        time.sleep(0.02)


def _is_of(pid: int, job: str, conf: Path, program: bytes) -> bool:
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        of_job = f"SLURM_JOB_ID={job}".encode() in variables
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        of_job |= f"slurmstepd: [{job}.".encode() in command
        return of_job and f"SLURM_CONF={conf}".encode() in variables and program in command
    return False


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def slurm_at_hand() -> Iterator[SlurmCluster]:
    """A cluster that Slurm's commands of this process and its children ask, until the block ends.

    :raises FileNotFoundError: Slurm is not installed.
    """
    missing = [
        name
        for name in PROGRAMS
        if shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}{SBIN}") is None
    ]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)} not found: apt-get install slurm-wlm munge util-linux"
        )
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    before = os.environ.get("SLURM_CONF")
    cluster = SlurmCluster(root)
    try:
        cluster.start()
        os.environ["SLURM_CONF"] = str(cluster.conf)
        yield cluster
    finally:
        os.environ.pop("SLURM_CONF", None)
        os.environ.update({} if before is None else {"SLURM_CONF": before})
        cluster.end()
        shutil.rmtree(root, ignore_errors=True)
