"""What nvidia-smi and ``doctor`` tell of a real GPU is what CUDA tells; pictures are rendered on
it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import command_helpers as commands
import gpu_helpers
import pytest

from orchestrator.machine.gpu import Gpu, detect_gpus

pytestmark = pytest.mark.nightly

LOOK = """
import json, torch
found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([[device.name, device.total_memory >> 20, str(device.uuid)] for device in found]))
"""
PICTURE = """
import json, sys
from pathlib import Path
from orchestrator.worker.rendering import offscreen, gl_library, scenery
try:
    library = gl_library.choose_gl()
except gl_library.CannotRender as why:
    sys.exit(f"skip: {why}")
import mujoco, numpy as np
from OpenGL import GL
model = scenery.add_scenery(Path(sys.argv[1]))
data = mujoco.MjData(model)
state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
with offscreen.PoseRenderer(model) as renderer:
    picture = renderer.picture(offscreen.Pose(state))
    name = GL.glGetString(GL.GL_RENDERER).decode()
print(json.dumps([library, name, picture.shape, len(np.unique(picture))]))
"""


def look(visible: str | None = None) -> list[tuple[str, int, str]]:
    """Name, MiB and UUID of each GPU as torch sees them in a process of its own."""
    environment = commands.environment(
        **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    )
    answer = subprocess.check_output(
        [sys.executable, "-c", LOOK], env=environment, text=True, timeout=60
    )
    return [
        (name, mib, f"GPU-{uuid.removeprefix('GPU-')}") for name, mib, uuid in json.loads(answer)
    ]


def agrees(gpu: Gpu, seen: tuple[str, int, str]) -> bool:
    name, mib, _ = seen
    return (
        gpu.name == name and gpu.memory_mib is not None and abs(gpu.memory_mib - mib) < 0.05 * mib
    )


@pytest.mark.gpu
def test_nvidia_smi_lists_the_gpus_that_cuda_sees() -> None:
    gpus, seen = detect_gpus(), look()
    assert len(gpus) == len(seen)
    for gpu in gpus:
        assert gpu.memory_mib is not None
        assert gpu.free_mib is not None
        assert 0 < gpu.free_mib <= gpu.memory_mib
        (alone,) = look(gpu.index)
        assert agrees(gpu, alone)
        if gpu.index.startswith("GPU-"):
            assert alone[2].startswith(gpu.index)


@pytest.mark.parametrize("device", gpu_helpers.ON_GPU)
def test_doctor_tells_how_many_jobs_fit_on_each_gpu(tmp_path: Path, device: str) -> None:
    done = commands.give("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (first, *others) = [row for row in json.loads(done.stdout) if row["title"] == "GPUs"]
    gpus = detect_gpus()
    assert not others
    assert bool(gpus) == (device == "cuda")
    for gpu in gpus:
        assert f"{gpu.index}: {gpu.name}, {gpu.memory_mib} MiB" in first["detail"]
    assert first["detail"].count("room for") == len(gpus)


@pytest.mark.parametrize("device", gpu_helpers.ON_BOTH)
def test_pictures_are_rendered_off_screen(tmp_path: Path, device: str) -> None:
    added = {"MUJOCO_GL": "egl"} if device == "cuda" else {}
    command = [sys.executable, "-c", PICTURE, commands.HOPPER]
    done = commands.finish(command, cwd=tmp_path, env=commands.environment(**added))
    if "skip: " in done.stderr:
        pytest.skip(done.stderr.partition("skip: ")[2].strip())
    assert done.returncode == 0, done.stderr
    library, renderer, shape, colours = json.loads(done.stdout.splitlines()[-1])
    assert shape == [480, 640, 3]
    assert colours > 20
    if device == "cuda":
        assert library == "egl"
        if "NVIDIA" not in renderer:
            pytest.skip(f"EGL works here, but renders on {renderer}, not on the GPU")
