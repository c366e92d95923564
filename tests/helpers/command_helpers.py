"""Runs commands as a user does, in processes of their own or in this one, on tiny experiments."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrator import cli
from orchestrator.client import start as client_start
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.examination import preflight
from orchestrator.experiment import run_directory

REPOSITORY = Path(__file__).parents[2]
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
"""From <linux/prctl.h> and <linux/capability.h>."""

PATIENCE_S = 180.0
"""For an event that is certain to come; only a failing test waits this long."""
LONG_PATIENCE_S = 3 * PATIENCE_S
"""For the end of a command, which may train several jobs on a busy machine; a test may take 600
s."""

HOPPER = REPOSITORY / "mjcf/hopper.xml"
BALANCER = REPOSITORY / "mjcf/balancer.xml"

TINY = """
[defaults]
total_timesteps = 512
n_envs = 2
checkpoint_every = 128
eval_episodes = 0
[defaults.ppo]
n_steps = 64
batch_size = 64
n_epochs = 1
[defaults.resources]
memory = "2 GiB"
min_free_disk = 0
"""

FORKED = f'{TINY}start = "fork"\n'
"""The same where many jobs start: their workers are forked from one process that has imported what
they need."""

CODE = '''
import os, signal, subprocess, sys, time
import gymnasium
import numpy as np


class Odd(gymnasium.Env):
    """Does nothing, until ``at`` steps were taken; then ``deed``."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, deed, at):
        self.deed, self.at, self.count = deed, at, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.count += 1
        observation = np.full(3, self.count % 7 / 7, np.float32)
        if self.count == self.at:
            observation = DEEDS[self.deed](observation)
        return observation, float(action[0]), False, self.count % 16 == 0, {}


def talk(observation):
    line = "x" * 1023 + "\\n"
    for _ in range(100 * 1024):
        sys.stdout.write(line)
    return observation


def fail(observation):
    raise ValueError("the knee fell off")


def babble(observation):
    raise ValueError("cannot read " + os.fsdecode(b"/dM\\xfcl") + "\\x1b]52;c;ZXZpbA==\\x07 " + "x" * 5_000_000)


def leave(observation):
    sys.exit(3)


def stand(observation):
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.01)
    return observation


def go_deaf(observation):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(600)


def have_children(observation):
    for new_session in (False, True):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=new_session)
    print("children", flush=True)
    time.sleep(600)


def eat(observation):
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20) * 16))
        time.sleep(0.02)


DEEDS = {
    "nothing": lambda observation: observation,
    "nan": lambda observation: observation * np.nan,
    "talk": talk,
    "fail": fail,
    "leave": leave,
    "babble": babble,
    "vanish": lambda observation: os._exit(0),
    "segfault": lambda observation: os.kill(os.getpid(), signal.SIGSEGV),
    "wait": lambda observation: time.sleep(600),
    "stand": stand,
    "go_deaf": go_deaf,
    "have_children": have_children,
    "eat": eat,
}


def make(xml=None, seed=0, deed="nothing", at=40):
    return Odd(deed, at)


class Unhurried(Odd):
    """Takes next to no processor time, because it mostly sleeps."""

    def step(self, action):
        time.sleep(0.003)
        return super().step(action)


def unhurried(xml=None, seed=0):
    return Unhurried("nothing", 0)


def raises(xml=None, seed=0):
    raise RuntimeError("no such robot today")


def takes_nothing():
    return Odd("nothing", 0)


def not_an_env(xml=None, seed=0):
    return 3
'''


@dataclass(frozen=True)
class Experiment:
    """A job file and its run directory, in ``cwd``."""

    cwd: Path
    jobs: Path
    run_dir: Path


def odd(name: str, deed: str, **more: Any) -> dict[str, Any]:
    """A job whose environment does ``deed`` early in its training (see ``DEEDS`` in ``CODE``)."""
    return {"name": name, "entry_point": "odd:make", "env_kwargs": {"deed": deed}, **more}


def write_experiment(
    directory: Path, *jobs: Mapping[str, Any], head: str = "", defaults: str = TINY
) -> Path:
    """Write a job file with ``jobs``, and the module ``odd`` in the same directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "odd.py").write_text(CODE)
    tables = toml_tables(("[[jobs]]", job) for job in jobs)
    path = directory / "jobs.toml"
    path.write_text(f'name = "tiny"\n{head}\n{defaults}\n{tables}\n', encoding="utf-8")
    return path


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {toml(part)}" for key, part in value.items())
            + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value if not isinstance(value, Path) else str(value), ensure_ascii=False)


def toml_tables(tables: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Tables of a job file, each below its head, such as ``[search]``."""
    lines: list[str] = []
    for head, table in tables:
        lines += [head, *(f"{key} = {toml(value)}" for key, value in table.items())]
    return "\n".join(lines)


def environment(**added: str) -> dict[str, str]:
    plain = {
        key: value
        for key, value in os.environ.items()
        if key not in ("COLUMNS", "LINES", "FORCE_COLOR")
    }
    search_path = filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    return {**plain, "PYTHONPATH": os.pathsep.join(search_path), **added}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "orchestrator", *map(str, arguments)]


STUB_WORKER = """
import json, os, signal, stat, sys, time
job, number = sys.argv[1:]
def end(code):
    with open(os.path.join(job, "attempts", number, "exit.json"), "w") as file:
        json.dump({"code": code, "message": "", "env_steps": 1}, file)
    os._exit(code)
if os.path.basename(job).startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
else:
    signal.signal(signal.SIGTERM, lambda *_: end(11))
if os.path.basename(job).startswith("busy"):
    facts = {"phase": "training", "env_steps": 64, "iteration": 1, "env_steps_per_s": 90.0}
    facts |= {"ep_rew_mean": 1.5, "cpu_share": 0.9, "run_delay_share": 0.1}
    os.write(int(os.environ["ORCHESTRATOR_CHANNEL"]), json.dumps(facts).encode() + b"\\n")
assert stat.S_ISSOCK(os.fstat(int(os.environ["ORCHESTRATOR_CHANNEL"])).st_mode)
open(os.path.join(job, "started"), "w").close()
open(os.path.join(job, "model.zip"), "w").close()
open(os.path.join(job, "vecnormalize.pkl"), "w").close()
while not os.path.exists(os.path.join(job, "../../..", "go-" + os.path.basename(job))):
    time.sleep(0.01)
end(0)
"""
EXAMINE_NOTHING = """
import contextlib, sys
from orchestrator.examination import examining_process, preflight
preflight.examine = lambda jobs, **_: {job.job_id: preflight.JobVerdict() for job in jobs}
examining_process.Child = contextlib.nullcontext
"""


def with_worker(worker: str) -> str:
    """Code for the process of a supervisor: its workers run this program."""
    return f"""
import sys
from orchestrator.executors import local, processes
worker = (sys.executable, "-I", "-S", "-c", {worker!r})
local.Processes = lambda: processes.Processes(worker_command=worker)
"""


def server_command(code: str) -> tuple[str, ...]:
    """What clients start in place of a supervisor: the same after ``code``."""
    main = "import sys\nfrom orchestrator.server.__main__ import main\nsys.exit(main())"
    return (sys.executable, "-c", f"{code}\n{main}")


def with_server(code: str) -> str:
    """Code for a client: the supervisors that it starts run ``code`` first."""
    return f"\nfrom orchestrator.client import start\nstart.COMMAND = {server_command(code)!r}\n"


STUBS = EXAMINE_NOTHING + with_server(EXAMINE_NOTHING + with_worker(STUB_WORKER))
"""Makes a program examine nothing and start :data:`STUB_WORKER`, which imports nothing: for tests
of the command.

The worker of job J succeeds when there is a file ``go-J`` beside the run directory, and notes its
start in ``started``. One whose name begins with ``deaf`` ignores SIGTERM, and one with ``busy``
reports that it trains.
"""


def stubbed(*arguments: str | Path) -> list[str]:
    """A command with :data:`STUBS`."""
    code = f"{STUBS}\nfrom orchestrator import __main__\n__main__.main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def stub_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of clients in this process start :data:`STUB_WORKER`."""
    add_to_server(monkeypatch, with_worker(STUB_WORKER))


def bow_to_permissions() -> None:
    """Drop root's permission to read every file, before an exec (capabilities(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if os.geteuid() == 0 and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "capability not dropped")


DOCTOR = """
from orchestrator.machine import doctor
doctor.worker_threads = lambda *_, **__: ()
from orchestrator import __main__
__main__.main()
"""
"""``doctor`` without its count of a worker's threads, for which a process imports PyTorch."""
PIPES = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}


def finish(
    command_line: Sequence[str | Path],
    *,
    cwd: Path,
    patience_s: float = LONG_PATIENCE_S,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Like :func:`start`, to its end."""
    settings = {"env": environment(), **PIPES, **how}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command_line, cwd=cwd, timeout=patience_s, check=False, **settings
    )
    return done


def give(
    *arguments: str | Path,
    cwd: Path,
    before: Callable[[], None] | None = None,
    patience_s: float = LONG_PATIENCE_S,
    **added: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own and wait for its end; it must not show a traceback.

    ``before`` is called in the new process before the command replaces it.
    """
    one = command(*arguments)
    done = finish(one, cwd=cwd, env=environment(**added), preexec_fn=before, patience_s=patience_s)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr + done.stdout
    return done


def invoke(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, like :func:`give` but without the start-up of a process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    command_line = ["orchestrator", *map(str, arguments)]
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", command_line),
    ):
        umask = os.umask(0o022)
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os.umask(umask)
    return subprocess.CompletedProcess(command_line, code, out.getvalue(), err.getvalue())


def succeed(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Like :func:`invoke`; its exit code must be 0."""
    done = invoke(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


INSTANT = """
import json, os, pathlib, sys
job, number = pathlib.Path(sys.argv[1]), sys.argv[2]
(job / "started_in").write_text(os.getcwd())
(job / "model.zip").touch()
(job / "vecnormalize.pkl").touch()
record = {"code": 0, "message": "", "env_steps": 1, "ep_rew_mean": 1.0}
if job.name.startswith("bad") and number == "0":
    record = {"code": 1, "message": "ValueError: the knee fell off (odd.py:33)", "env_steps": 1}
(job / "attempts" / number / "exit.json").write_text(json.dumps(record))
sys.exit(record["code"])
"""


def instant(*arguments: str | Path, worker: str = INSTANT) -> list[str]:
    """A command whose workers train nothing: see :func:`instant_workers`."""
    code = with_server(with_worker(worker))
    code += "from orchestrator import __main__\n__main__.main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def instant_workers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Runs of clients in this process train nothing: their workers succeed at once; ``bad…`` only
    in its second attempt."""
    add_to_server(monkeypatch, with_worker(INSTANT))


def examine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of clients in this process take robots and environments for good, without a child
    process."""
    add_to_server(monkeypatch, EXAMINE_NOTHING)

    def examine(jobs: Sequence[Job], **_: Any) -> dict[str, preflight.JobVerdict]:
        return {job.job_id: preflight.JobVerdict() for job in jobs}

    monkeypatch.setattr("orchestrator.examination.preflight.examine", examine)
    monkeypatch.setattr("orchestrator.examination.examining_process.Child", contextlib.nullcontext)


def add_to_server(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the supervisors that clients in this process start run ``code`` before anything else."""
    earlier = ""
    if "-c" in client_start.COMMAND:
        earlier = client_start.COMMAND[2].partition("import sys\nfrom orchestrator.server")[0]
    command = server_command(f"{earlier}{code}")
    monkeypatch.setattr("orchestrator.client.start.COMMAND", command)


def start(command_line: Sequence[str | Path], *, cwd: Path, **how: Any) -> subprocess.Popen[str]:
    """A command in a process of its own, which has no input and whose output can be read.

    :param how: other keywords of :class:`subprocess.Popen`.
    """
    process: subprocess.Popen[str] = subprocess.Popen(
        command_line, cwd=cwd, **{"env": environment(), **PIPES, **how}
    )
    return process


class Run:
    """A ``run --json`` in a process of its own.

    :param typed: makes the command line, such as :func:`stubbed`.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path,
        typed: Callable[..., list[str]] = command,
        **added: str,
    ) -> None:
        self.cwd = cwd
        self.events: list[dict[str, Any]] = []
        self.stderr = ""
        """Standard error, after its end."""
        command_line = typed("run", *arguments, "--json")
        self.popen = start(command_line, cwd=cwd, env=environment(**added), start_new_session=True)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()

    def until(self, kind: str, job_id: str | None = None) -> dict[str, Any]:
        """Read events up to the next one of that kind, and of that job if one is given."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == kind and job_id in (None, self.events[-1].get("job_id")):
                return self.events[-1]
        raise AssertionError(
            f"no event {kind}; exit code {self.popen.wait()}: {self._read_stderr()}\n{self.events}"
        )

    def _read_stderr(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.read()

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill_supervisor(self, run_dir: str = "run") -> None:
        """Kill the supervisor of a run directory, and wait for the end of its client."""
        holder = run_directory.holder(RunPaths(self.cwd / run_dir))
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Read all events; returns the exit code."""
        assert self.popen.stdout is not None
        self.events += map(json.loads, self.popen.stdout)
        self.stderr = self._read_stderr()
        assert "Traceback" not in self.stderr, self.stderr
        return self.popen.wait(PATIENCE_S)

    def kinds(self, job_id: str) -> list[str]:
        return [event["event"] for event in self.events if event.get("job_id") == job_id]


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something without an event, such as a file that appears; returns what ``condition``
    returned.

    The longer ``condition`` takes, the longer it waits between: the processors are for what is
    waited for.
    """
    deadline = time.monotonic() + patience_s
    while True:
        asked = time.monotonic()
        if result := condition():
            return result
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain: {what}"
        time.sleep(min(max(0.01, 9 * (time.monotonic() - asked)), 0.25))


def summary(run_dir: Path) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in json.loads((run_dir / "summary.json").read_text())}


def variables_of(pid: int) -> dict[str, str]:
    """The environment variables of a process.

    The kernel shows an empty environment for an instant during ``exec``, in which the launch is
    already recorded.

    :raises ProcessLookupError: the process has ended: one that is not waited for yet has an empty
        environment too.
    """

    def read() -> bytes:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            raise ProcessLookupError(pid)
        return Path(f"/proc/{pid}/environ").read_bytes()

    content: bytes = wait_until(read, f"the environment of process {pid}")
    return dict(variable.partition("=")[::2] for variable in os.fsdecode(content).split("\0"))


def token_of(pid: int) -> bytes:
    """The environment variable that marks every process started by the supervisor of ``pid``."""
    token = variables_of(pid)["ORCHESTRATOR_TOKEN"].split("/")[0]
    return f"ORCHESTRATOR_TOKEN={token}".encode()


def carriers(token: bytes) -> list[int]:
    """Pids of the processes with that token."""
    return _with_text(token, "environ")


def _with_text(text: bytes, file: str) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if text in (entry / file).read_bytes():
                    pids.append(int(entry.name))
    return pids


def command_of(pid: int) -> str:
    """The command line of a process; empty for one that has ended."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def mentioning(folder: Path) -> list[int]:
    """Pids of the processes with that folder in their command line."""
    return _with_text(str(folder).encode(), "cmdline")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
