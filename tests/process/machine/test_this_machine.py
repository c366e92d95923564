"""What is found out about the machine with the help of processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.machine import doctor, process_identity, topology
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.process_identity import process_start, same_process
from orchestrator.machine.topology import detect


@pytest.mark.nightly
def test_a_process_that_hogs_a_cpu_is_named_and_its_cpu_is_loaded() -> None:
    # no child of this process
    hog = f"{sys.executable} -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    load = CpuLoad()
    pid = int(subprocess.run(["sh", "-c", hog], check=True, capture_output=True, text=True).stdout)
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cpu})
    try:
        assert f"(pid {pid}) of " in doctor.programs(detect()).detail
        time.sleep(1.0)
        assert load.shares(()).get(cpu, 0.0) > 0.25
    finally:
        os.kill(pid, signal.SIGKILL)


def test_imports_that_fail_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COUNT_THREADS", "raise ImportError('libfoo.so: cannot open')")
    (finding,) = doctor.worker_threads()
    assert (finding.level, "libfoo.so" in finding.detail) == ("warning", True)


def test_imports_that_hang_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COUNT_THREADS", "__import__('time').sleep(60)")
    (finding,) = doctor.worker_threads(timeout_s=0.2)
    assert finding.level == "warning"


@pytest.mark.parametrize(
    ("child", "level"),
    [
        pytest.param("print(1)", "ok", id="one"),
        pytest.param("print(2)", "warning", id="two"),
        pytest.param(doctor.COUNT_THREADS, "ok", id="counted", marks=pytest.mark.nightly),
    ],
)
def test_warnings_say_what_to_do_and_json_holds_all(child: str, level: str) -> None:
    code = (
        "import sys\nfrom orchestrator.machine import doctor\n"
        f"doctor.COUNT_THREADS = {child!r}\nprint(doctor.to_json(doctor.examine()))\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert all(set(row) == {"level", "title", "detail", "cure"} for row in rows)
    assert all(row["cure"] for row in rows if row["level"] == "warning")
    titles = ("Will be used", "Cores", "CPU quota", "Memory", "GPUs", "Rendering", "Versions")
    assert {*titles, "Worker threads"} <= {row["title"] for row in rows}
    assert [row["level"] for row in rows if row["title"] == "Worker threads"] == [level]
    assert not {"torch", "stable_baselines3", "gymnasium", "mujoco", "numpy"} & set(
        done.stderr.split()
    )


NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-aaaa-1, NVIDIA H200, 143771, 143000"
echo "1, GPU-bbbb-2, NVIDIA H200, 143771, 143000"
echo "2, GPU-cccc-3, NVIDIA T4, [N/A], [N/A]"
"""


class TestGpus:
    def fake(self, folder: Path, script: str) -> dict[str, str]:
        program = folder / "nvidia-smi"
        program.write_text(script)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {"PATH": str(folder)}

    def test_every_gpu_is_handed_out_by_uuid(self, tmp_path: Path) -> None:
        found = detect_gpus(self.fake(tmp_path, NVIDIA_SMI))
        assert [gpu.index for gpu in found] == ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"]
        assert (found[0].name, found[0].memory_mib, found[0].free_mib) == (
            "NVIDIA H200",
            143771,
            143000,
        )
        assert (found[2].memory_mib, found[2].free_mib) == (None, None)

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            ("1,0", ["1", "0"]),
            ("2", ["2"]),
            ("GPU-bb", ["GPU-bb"]),
            ("1,7,0", ["1"]),
            ("MIG-x/1/0", ["MIG-x/1/0"]),
            ("", []),
            ("-1", []),
            ("NoDevFiles", []),
        ],
    )
    def test_outer_cuda_visible_devices_is_honoured(
        self, tmp_path: Path, visible: str, expected: list[str]
    ) -> None:
        environment = {**self.fake(tmp_path, NVIDIA_SMI), "CUDA_VISIBLE_DEVICES": visible}
        assert [gpu.index for gpu in detect_gpus(environment)] == expected

    def test_no_driver_no_gpus(self, tmp_path: Path) -> None:
        assert detect_gpus({"PATH": str(tmp_path)}) == ()
        assert (
            detect_gpus(self.fake(tmp_path, "#!/bin/sh\necho 'has failed because'\nexit 9\n")) == ()
        )

    def test_a_hanging_driver_is_not_waited_for(self, tmp_path: Path) -> None:
        environment = self.fake(tmp_path, "#!/bin/sh\nexec /bin/sleep 60\n")
        assert detect_gpus(environment, timeout_s=0.1) == ()


class TestThisMachine:
    def test_a_pid_with_its_start_time_is_an_identity(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        start = process_start(child.pid)
        assert start is not None
        assert same_process(child.pid, start)
        assert not same_process(child.pid, start + 1)
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert same_process(child.pid, start), "a zombie still holds its pid"
        child.wait()
        assert process_start(child.pid) is None
        assert not same_process(child.pid, start)

    def test_after_a_reboot_or_on_another_machine_no_process_is_the_recorded_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorded = process_start(os.getpid())
        assert recorded is not None
        (tmp_path / "boot_id").write_text("b1e5c5f3-0000-4b4e-8d52-7f9a0c1d2e3f\n")
        monkeypatch.setattr(process_identity, "BOOT_ID", tmp_path / "boot_id")
        process_identity._boot_fraction.cache_clear()
        try:
            assert not same_process(os.getpid(), recorded)
        finally:
            process_identity._boot_fraction.cache_clear()

    @pytest.mark.parametrize("pid", [0, -1, 2**30])
    def test_no_such_process(self, pid: int) -> None:
        assert process_start(pid) is None

    def test_a_process_name_with_parentheses_does_not_confuse(self, tmp_path: Path) -> None:
        program = tmp_path / "a) R 1 (b"
        program.symlink_to("/bin/sleep")
        child = subprocess.Popen([program, "60"])
        try:
            assert process_start(child.pid) == pytest.approx(process_start(os.getpid()), abs=1e6)
        finally:
            child.kill()
            child.wait()

    def test_detected_cpus_are_those_of_the_affinity_mask(self) -> None:
        found = detect()
        assert {cpu.index for cpu in found.cpus} == os.sched_getaffinity(0)
        assert 1 <= found.capacity <= found.physical_cores
        assert 0 < topology.available_memory_mib() <= found.memory_total_mib
