"""A worker that starts faster and holds less memory trains the same bits, and users' code finds all of torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.worker.runtime import startup

BALANCER = helpers.REPOSITORY / "mjcf/balancer.xml"
MOST_RESIDENT_MIB = 250

WORKER = """
import sys
from orchestrator.worker import __main__ as worker, startup
worker.leave = lambda record, _: print(record.code, record.message, type(sys.modules[startup.META_KERNELS]).__name__)
"""
AS_THEY_COME = """
import contextlib
startup.imports = startup.meta_kernels_later = contextlib.nullcontext
startup.load_meta_kernels = startup.keep_dynamo_out = startup.release_library_pages = lambda: None
"""
LEAN = """
import sys
from orchestrator.worker.runtime import startup
with startup.imports(), startup.meta_kernels_later():
    import torch, stable_baselines3
startup.keep_dynamo_out()
startup.release_library_pages()
"""
WHAT_PEOPLE_DO_WITH_SB3 = """
import csv, hashlib, pathlib, sys, traceback
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
import gymnasium

torch.set_num_threads(1)
env = Monitor(gymnasium.make("Pendulum-v1"), filename="monitor.csv")
model = PPO("MlpPolicy", env, seed=1, n_steps=256, batch_size=64, n_epochs=2, device="cpu")
model.set_logger(configure("logs", ["csv"]))
model.learn(512)
model.save("model.zip")
model = PPO.load("model.zip", env=env, device="cpu")
model.learn(256, reset_num_timesteps=False)
for name, tensor in sorted(model.policy.state_dict().items()):
    print(name, hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
print([line.split(",")[:2] for line in pathlib.Path("monitor.csv").read_text().splitlines()[1:]])
for row in csv.DictReader(open("logs/progress.csv")):
    print(sorted(item for item in row.items() if not item[0].startswith("time/")))
try:
    model.policy.predict_values(torch.zeros(2, 5))
except RuntimeError:
    print(traceback.format_exc())
"""
META_KERNELS = """
def registered():
    return torch._C._dispatch_get_registrations_for_dispatch_key("Meta")

def convolved():
    image, kernel = torch.empty(1, 3, 8, 8, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
    return tuple(torch.nn.functional.conv2d(image, kernel).shape)
"""
ENV_OF_A_USER = """
import gymnasium
import numpy as np
import torch
from torch import nn


class Convolving(gymnasium.Env):
    render_mode = None
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self):
        with torch.device("meta"):
            self.shape = nn.Conv2d(3, 4, 3)(torch.empty(1, 3, 8, 8)).shape
        print("SHAPE", tuple(self.shape), flush=True)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return self.np_random.random(3, np.float32), 0.0, False, False, {}


def make_env(xml, seed):
    return gymnasium.wrappers.TimeLimit(Convolving(), 20)
"""


def answer(program: str, cwd: Path, *arguments: str, **environment: str) -> str:
    """What a Python program prints in a process of its own, to both outputs."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(helpers.REPOSITORY), **environment}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def balancing(directory: Path, **changes: Any) -> JobPaths:
    """A job of a built-in task with normalisation."""
    (directory / "robot").mkdir(parents=True)
    (directory / "robot/balancer.xml").write_bytes(BALANCER.read_bytes())
    return helpers.job(directory, helpers.spec(task="balance", xml="robot/balancer.xml", normalize=True, **changes))


@pytest.mark.parametrize("learner", ["sb3", "fast"])
def test_worker_trains_the_same_bits_in_less_memory(tmp_path: Path, learner: str) -> None:
    plain, lean = (balancing(tmp_path / name, learner=learner, eval_episodes=1) for name in ("plain", "lean"))
    as_they_come = f"{WORKER}\n{AS_THEY_COME}\nworker.main(sys.argv[1:])"
    assert answer(as_they_come, tmp_path, str(plain.root), "0").splitlines()[-1] == "0  module"
    as_we_start = f"{WORKER}\nworker.main(sys.argv[1:])"
    assert answer(as_we_start, tmp_path, str(lean.root), "0").splitlines()[-1] == "0  _Placeholder"
    assert helpers.same_bits(helpers.parameters(lean.model), helpers.parameters(plain.model))
    assert helpers.normalization(lean.vecnormalize) == helpers.normalization(plain.vecnormalize)
    (of_plain, of_lean) = (float(helpers.rows(paths.timings_csv)[-1]["rss_mib"]) for paths in (plain, lean))
    assert of_lean < min(of_plain, MOST_RESIDENT_MIB)


def test_stable_baselines3_saves_loads_logs_and_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WHAT_PEOPLE_DO_WITH_SB3)
    run = "import runpy; runpy.run_path('../program.py')"
    answers = []
    for name, begin in (("plain", ""), ("lean", LEAN)):
        (tmp_path / name).mkdir()
        answers.append(answer(begin + run, tmp_path / name))
    plain, lean = answers
    assert "log_std" in plain
    assert "mat1 and mat2 shapes cannot be multiplied" in plain
    assert lean == plain


def test_meta_kernels_that_were_left_out_come_back_all(tmp_path: Path) -> None:
    show = "print(convolved()); print(*sorted(registered()), sep='\\n')"
    plain = answer(f"import torch\n{META_KERNELS}\n{show}", tmp_path)
    assert plain.startswith("(1, 4, 6, 6)\n")
    before = "all_there = 'aten::convolution' in registered()\nassert not all_there"
    lean = f"{LEAN}\n{META_KERNELS}\n{before}"
    assert answer(f"{lean}\nstartup.load_meta_kernels()\nstartup.load_meta_kernels()\n{show}", tmp_path) == plain
    assert answer(f"{lean}\nfrom torch._meta_registrations import register_meta\n{show}", tmp_path) == plain
    assert answer(f"{lean}\ntorch._meta_registrations.register_meta\n{show}", tmp_path) == plain
    assert answer(f"{lean}\nimport torch._dynamo\n{show}", tmp_path).startswith("(1, 4, 6, 6)\n")


def test_further_modules_of_torch_find_what_they_rely_on(tmp_path: Path) -> None:
    """``torch._dynamo`` fails to import before ``torch._prims``, and so do others."""
    program = """
import importlib, os
skipped = set(json.loads(sys.argv[1])) - set(sys.modules)
assert {"torch._prims", "torch._refs", "torch._decomp.decompositions"} <= skipped
for name in sorted(skipped | {"torch._dynamo", "torch._inductor.config"}):
    child = os.fork()
    if not child:
        spec = importlib.import_module(name).__spec__
        assert spec is not None and spec.origin is not None, spec
        assert sys.modules[name].__spec__ is spec
        assert len(registered()) >= int(sys.argv[2])
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    loaded = "import json, sys, torch\nprint(json.dumps([*sys.modules]))"
    plain = answer(f"{loaded}\n{META_KERNELS}\nprint(len(registered()))", tmp_path).splitlines()
    lines = answer(f"import json\n{LEAN}\n{META_KERNELS}\n{program}", tmp_path, *plain).splitlines()
    assert len(lines) > 10
    assert [line for line in lines if not line.endswith(" 0")] == []


def test_looking_through_the_loaded_modules_loads_nothing(tmp_path: Path) -> None:
    look = (
        "import inspect\n"
        "inspect.getmodule(inspect.currentframe())\n"
        "print([hasattr(module, '__file__') for module in list(sys.modules.values())].count(True) > 0)\n"
        "print(type(sys.modules[startup.META_KERNELS]).__name__, 'torch._prims' in sys.modules)"
    )
    assert answer(f"{LEAN}\n{look}", tmp_path).split() == ["True", "_Placeholder", "False"]


def test_a_loaded_torch_is_left_as_it_is() -> None:
    loaded = sys.modules[startup.META_KERNELS]
    with startup.meta_kernels_later():
        assert sys.modules[startup.META_KERNELS] is loaded
    startup.load_meta_kernels()
    assert sys.modules[startup.META_KERNELS] is loaded is torch._meta_registrations


@pytest.mark.parametrize(
    "torch_of_another_version",
    [
        "",
        "raise ImportError('no torch here')",
        "from . import _meta_registrations as kernels\nfound = kernels.found\n",
    ],
)
def test_another_torch_is_imported_as_it_is(tmp_path: Path, torch_of_another_version: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch_of_another_version)
    (tmp_path / "torch/_meta_registrations.py").write_text("found = 'itself'")
    program = (
        "import contextlib, sys\n"
        "from orchestrator.worker.runtime import startup\n"
        "with contextlib.suppress(ImportError), startup.meta_kernels_later():\n"
        "    import torch\n"
        "print(type(sys.modules.get(startup.META_KERNELS)).__name__, getattr(sys.modules.get('torch'), 'found', '-'))"
    )
    expected = "module itself" if "found" in torch_of_another_version else "NoneType -"
    path = os.pathsep.join((str(tmp_path), str(helpers.REPOSITORY)))
    assert answer(program, tmp_path, PYTHONPATH=path).strip() == expected


def test_environment_of_a_user_finds_every_kernel_of_torch(tmp_path: Path) -> None:
    (tmp_path / "own_env.py").write_text(ENV_OF_A_USER)
    spec = helpers.spec(entry_point="own_env:make_env", search_path=str(tmp_path))
    record, log = helpers.run(helpers.job(tmp_path / "job", spec))
    assert record.code == ExitCode.SUCCEEDED, log
    assert "SHAPE (1, 4, 6, 6)" in log


class PlugIn(gymnasium.Env[Any, Any]):
    """Registered below, as packages do."""


@pytest.mark.parametrize(
    ("changes", "of_others"),
    [
        ({"task": "forward"}, False),
        ({"task": "auto"}, False),
        ({"task": "gymnasium:Ant-v5"}, False),
        ({"task": "my_tasks:Jump"}, True),
        ({"env": "HalfCheetah-v5"}, False),
        ({"env": "CartPole-v1"}, False),
        ({"env": "package:HalfCheetah-v5"}, True),
        ({"env": "NotRegistered-v0"}, True),
        ({"env": "PlugIn-v0"}, True),
        ({"entry_point": "my_env:make"}, True),
    ],
)
def test_it_is_known_whose_code_runs(changes: Mapping[str, str], of_others: bool) -> None:
    gymnasium.register("PlugIn-v0", entry_point=PlugIn)
    try:
        assert startup.runs_code_of_others(helpers.spec(**changes)) == of_others
    finally:
        del gymnasium.registry["PlugIn-v0"]


def mapping(head: str, *, anonymous_kib: int = 0, swap_kib: int = 0) -> str:
    """As in proc_pid_smaps(5)."""
    return (
        f"{head}\nSize: 8 kB\nRss: 8 kB\nAnonymous: {anonymous_kib:12} kB\nAnonHugePages: 0 kB\n"
        f"Swap: {swap_kib:12} kB\nSwapPss: 0 kB\nLocked: 0 kB\nVmFlags: rd ex mr mw me sd \n"
    )


def test_only_mappings_that_are_as_in_the_file_are_given_back() -> None:
    smaps = "".join(
        (
            mapping("1000-3000 r-xp 00001000 fd:00 77    /usr/lib/code.so"),
            mapping("3000-5000 r--p 00003000 fd:00 77    /usr/lib/with a space.so"),
            mapping("5000-7000 r--p 00003000 fd:00 77    /usr/lib/relocated.so", anonymous_kib=4),
            mapping("7000-9000 r-xp 00003000 fd:00 77    /usr/lib/changed_and_swapped.so", swap_kib=4),
            mapping("9000-b000 rw-p 00003000 fd:00 77    /usr/lib/data.so"),
            mapping("b000-d000 r--s 00003000 fd:00 77    /tmp/shared"),
            mapping("d000-f000 r-xp 00000000 00:00 0     [vdso]"),
            mapping("f000-11000 r--p 00000000 00:00 0"),
            mapping("7f0000001000-7f0000003000 r-xp 00000000 103:01 9 /usr/lib/last.so"),
        )
    )
    expected = [(0x1000, 0x3000), (0x3000, 0x5000), (0x7F0000001000, 0x7F0000003000)]
    assert startup.unchanged_mappings(smaps) == expected


def test_a_kernel_that_does_not_tell_of_its_pages_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_SMAPS", tmp_path / "smaps")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("pages were given back"))
    startup.release_library_pages()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_pages_of_libraries_are_given_back_and_come_again(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from orchestrator.worker.runtime import resources, startup\n"
        "matrix = torch.arange(64.0).reshape(8, 8).sin()\n"
        "before, first = resources._rss_mib(), torch.linalg.svd(matrix)\n"
        "startup.release_library_pages()\n"
        "after, second = resources._rss_mib(), torch.linalg.svd(matrix)\n"
        "print(before - after > 20, all(map(torch.equal, first, second)))"
    )
    assert answer(program, tmp_path).split() == ["True", "True"]
