"""What the live page costs: CPU time of its server with 100 running jobs and five viewers; first
paint of 1,000 jobs; how much slower a training is with five viewers.

    python -m benchmarks.live_page --only cost           # a minute for each repeat
    python -m benchmarks.live_page --only paint          # needs Chromium, its driver and selenium
    python -m benchmarks.live_page --only training       # two trainings of a minute or two for each repeat

The run directory is held and written by this process as a supervisor does it: once a second the
progress of all running jobs, and ``live.json``. The server is the command ``serve`` in a process of
its own; its CPU time is that of all of its threads, from the kernel.

For the training, one job on every core trains the hopper for 614,400 env_steps, as in
``benchmarks.trackers``: once with the server and five viewers beside it, on the same machine, and
once without. The order alternates, and the figure is relative to the run without viewers of the
same repeat.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import ORCHESTRATOR, ROOT, Line, at_most, print_table
from benchmarks.simulated_cluster import make_jobs
from benchmarks.training_speed import slower
from orchestrator.core.job import Attempt, Running
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.ledger import Ledger
from orchestrator.ledger.live_facts import LiveFacts, LiveJob
from orchestrator.ledger.rows import DeclaredJob, LatestFigures

RUNNING = 100
VIEWERS = 5
MEASURED_S = 60.0
MANY = 1_000
WARM_UP_S = 15.0
MOST_SHARE = 0.5
MOST_PAINT_MS = 500.0
MOST_PAGE_KIB = 300.0
ENV_STEPS_A_SECOND = 2_000


class PretendedRun:
    """A run directory with jobs that all run, whose figures change once a second."""

    def __init__(self, paths: RunPaths, count: int) -> None:
        self.paths = paths
        jobs = list(make_jobs(count, random.Random(0), max_retries=0, stall_timeout_s=900.0))
        self._ids = [job.job_id for job in jobs]
        self._total = {job.job_id: job.spec.total_timesteps for job in jobs}
        self._steps = 0
        self.ledger = Ledger.create(paths.ledger)
        self.ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(jobs))
        now = time.time()
        for place, job_id in enumerate(self._ids):
            values: dict[str, Any] = {
                "cpus": (place,),
                "gpus": (),
                "pid": None,
                "pid_start": None,
                "started_at": now,
            }
            attempt = Attempt(job_id=job_id, number=0, **values)
            self.ledger.start_attempt(attempt, queue_s=0.0)
            self.ledger.set_state(job_id, Running(attempt=attempt))
            paths.job(job_id).root.mkdir(parents=True)
            paths.job(job_id).progress_csv.write_text("time/total_timesteps,rollout/ep_rew_mean\n")
        self.ledger.commit()

    def advance(self) -> None:
        """A second passes."""
        self._steps += ENV_STEPS_A_SECOND
        returns = self._steps**0.5
        for job_id in self._ids:
            with self.paths.job(job_id).progress_csv.open("a") as file:
                file.write(f"{self._steps},{returns:.6f}\n")
        self.ledger.set_progress(
            LatestFigures(
                job_id=job_id,
                env_steps=self._steps,
                ep_rew_mean=returns,
                env_steps_per_s=2e3,
                learner="fast",
            )
            for job_id in self._ids
        )
        self.ledger.commit()
        holder = run_directory.holder(self.paths)
        assert holder is not None
        live = {
            job_id: LiveJob(phase="training", cpu_share=0.99, run_delay_share=0.01)
            for job_id in self._ids
        }
        self.paths.live.write_bytes(LiveFacts(holder=holder.key, jobs=live).to_line())


@contextlib.contextmanager
def pretended(count: int) -> Iterator[PretendedRun]:
    with (
        tempfile.TemporaryDirectory() as folder,
        run_directory.claim(Path(folder) / "run") as paths,
    ):
        run = PretendedRun(paths, count)
        try:
            yield run
        finally:
            run.ledger.abandon()


@contextlib.contextmanager
def serving(root: Path) -> Iterator[tuple[psutil.Process, int]]:
    """The process of a server, and its port."""
    command = [*ORCHESTRATOR, "serve", str(root), "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            yield psutil.Process(child.pid), int(address.rstrip("/").rpartition(":")[2])
        finally:
            child.terminate()


def view(port: int, ends: list[socket.socket]) -> None:
    """Read events until the connection ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/api/this/events")
    answer = connection.getresponse()
    assert connection.sock is not None
    ends.append(connection.sock)
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        while answer.readline():
            continue


@contextlib.contextmanager
def viewed(root: Path) -> Iterator[psutil.Process]:
    """The process of a server that has viewers."""
    with serving(root) as (server, port):
        ends: list[socket.socket] = []
        viewers = [
            threading.Thread(target=view, args=(port, ends), daemon=True) for _ in range(VIEWERS)
        ]
        for viewer in viewers:
            viewer.start()
        yield server
        assert all(viewer.is_alive() for viewer in viewers), "they have looked all the time"
        for end in ends:
            end.close()


def cost(repeats: int) -> list[Line]:
    """Share of a core, in per cent, with and without something that changes."""
    busy = []
    idle = []
    for _ in range(repeats):
        with pretended(RUNNING) as run, viewed(run.paths.root) as server:
            _advance_for(run, WARM_UP_S)
            busy.append(_share(server, lambda run=run: _advance_for(run, MEASURED_S)))
            idle.append(_share(server, lambda: time.sleep(MEASURED_S / 4)))
    what = f"CPU of the server, {RUNNING} running jobs, {VIEWERS} viewers, % of a core"
    return [at_most(what, busy, MOST_SHARE), at_most("the same while nothing changes", idle)]


def _advance_for(run: PretendedRun, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        run.advance()
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _share(server: psutil.Process, meanwhile: Any) -> float:
    began = time.monotonic()
    before = _cpu_s(server)
    meanwhile()
    return 100 * (_cpu_s(server) - before) / (time.monotonic() - began)


def _cpu_s(server: psutil.Process) -> float:
    """Finer than the ticks of ``/proc/PID/stat``: of all threads, from the scheduler."""
    return sum(
        int((Path(f"/proc/{server.pid}/task") / task / "schedstat").read_text().split()[0]) / 1e9
        for task in os.listdir(f"/proc/{server.pid}/task")
    )


def chromium_driver() -> Any:
    """Chromium without a window, as Debian's packages and selenium start it."""
    chromium = shutil.which("chromium")
    driver_path = shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        raise SystemExit("there is no browser here: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(driver_path))


def paint(repeats: int) -> list[Line]:
    """Time to the first paint of the table of 1,000 jobs, in Chromium without a window, and bytes
    until then."""
    driver = chromium_driver()
    times: list[float] = []
    sizes: list[float] = []
    try:
        with pretended(MANY) as run, serving(run.paths.root) as (_, port):
            run.advance()
            for number in range(repeats + 1):  # the first one starts the browser and the reader
                driver.get("about:blank")
                driver.get(f"http://127.0.0.1:{port}/")
                while not (at := driver.execute_script("return window.orchestratorPainted")):
                    time.sleep(0.05)
                if number:
                    times.append(float(at))
            sizes = [_page_kib(port)]
    finally:
        driver.quit()
    return [
        at_most(f"first paint of {MANY:,} jobs, ms", times, MOST_PAINT_MS),
        at_most(f"page and first message of {MANY:,} jobs, KiB", sizes, MOST_PAGE_KIB),
    ]


def _page_kib(port: int) -> float:
    from orchestrator.features.live_page.pages import ASSETS

    whole = 0
    for path in ("/", *(f"/assets/{name}" for name in ASSETS), "/api/this/events"):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", path)
        answer = connection.getresponse()
        if path.endswith("events"):
            while not (line := answer.readline()).startswith(b"data: {"):
                whole += len(line)
            whole += len(line)
            assert len(json.loads(line[6:])["put"]) > MANY
        else:
            whole += len(answer.read())
        connection.close()
    return whole / 1024


def training(repeats: int) -> list[Line]:
    """By which share a training is slower with viewers."""
    return slower(f"a training slower with {VIEWERS} viewers", repeats, beside=viewed)


def main() -> None:
    print_table(__doc__, {"cost": cost, "paint": paint, "training": training})


if __name__ == "__main__":
    main()
