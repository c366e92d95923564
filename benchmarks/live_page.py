"""What the live page costs: CPU time of its server with 100 running jobs and five viewers; how soon
1,000 jobs and 200 experiments are shown; how much slower a training is with five viewers.

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
from urllib.parse import urlsplit

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
MANY_RUNS = 200
JOBS_OF_A_RUN = 5
WARM_UP_S = 15.0
MOST_SHARE = 0.5
MOST_PAINT_MS = 500.0
MOST_PAGE_KIB = 100.0
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
def serving(shown: Path) -> Iterator[tuple[psutil.Process, str]]:
    """The process of a server, and the address that it prints."""
    command = [*ORCHESTRATOR, "serve", str(shown), "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            yield psutil.Process(child.pid), child.stdout.readline().strip()
        finally:
            child.terminate()


def view(address: str, ends: list[socket.socket]) -> None:
    """Read events until the connection ends."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
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
    with serving(root) as (server, address):
        ends: list[socket.socket] = []
        viewers = [
            threading.Thread(target=view, args=(address, ends), daemon=True) for _ in range(VIEWERS)
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
    """Milliseconds until Chromium without a window shows 1,000 jobs, and 200 experiments: at the
    first load after the server has begun, and at the next one.
    """
    driver = chromium_driver()
    try:
        with pretended(MANY) as run:
            run.advance()
            lines = _loads(driver, run.paths.root, f"{MANY:,} jobs", repeats)
            with serving(run.paths.root) as (_, address):
                lines.append(
                    at_most(f"page of {MANY:,} jobs, KiB", [_page_kib(address)], MOST_PAGE_KIB)
                )
        with pretended_folder(MANY_RUNS) as folder:
            lines += _loads(driver, folder, f"{MANY_RUNS} experiments", repeats)
    finally:
        driver.quit()
    return lines


@contextlib.contextmanager
def pretended_folder(count: int) -> Iterator[Path]:
    """A folder with so many experiments that were interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            with run_directory.claim(Path(folder) / f"run{number}") as paths:
                PretendedRun(paths, JOBS_OF_A_RUN).ledger.close()
        yield Path(folder)


def _loads(driver: Any, shown: Path, what: str, repeats: int) -> list[Line]:
    times: dict[str, list[float]] = {}
    for number in range(repeats + 1):  # the first one starts the browser
        with serving(shown) as (server, address):
            for load in ("first load", "next load"):
                before_s = _cpu_s(server)
                found = _times(driver, address)
                found["CPU of the server"] = 1000 * (_cpu_s(server) - before_s)
                if number:
                    for name, at in found.items():
                        times.setdefault(f"{what}, {load}: {name}, ms", []).append(at)
    return [
        at_most(name, values, None if "CPU" in name else MOST_PAINT_MS)
        for name, values in times.items()
    ]


def _times(driver: Any, address: str) -> dict[str, float]:
    """Since the address was asked for; of all rows since a click. CPU time, which says more on a
    busy machine, is that of the page's main thread.
    """
    driver.get("about:blank")
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    driver.get(address)
    while not (drawn := driver.execute_script("return window.orchestratorPainted")):
        time.sleep(0.05)
    paints = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while not (content := driver.execute_script(paints)):
        time.sleep(0.05)
    found = {"content": float(content), "drawn": float(drawn)}
    found["CPU of the page"] = _task_ms(driver)
    if driver.execute_script("return document.getElementById('more-jobs')?.checkVisibility()"):
        found["all rows, from the click"] = float(driver.execute_async_script(SHOW_ALL))
        found["CPU of the page for all rows"] = _task_ms(driver) - found["CPU of the page"]
        rows = driver.execute_script("return document.querySelectorAll('#jobs tbody tr').length")
        assert rows == MANY
    return found


def _task_ms(driver: Any) -> float:
    """CPU time of the main thread of the page since it was asked for."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


SHOW_ALL = """
    const done = arguments[0], began = performance.now(), more = document.getElementById("more-jobs");
    while (!more.hidden) more.click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
"""
"""Shows all jobs and waits until they are painted."""


def _page_kib(address: str) -> float:
    """Of all that a browser loads before the stream, as it is sent."""
    from orchestrator.features.live_page.pages import ASSETS

    whole = 0
    for path in ("/", *(f"/assets/{name}" for name in ASSETS)):
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        connection.request("GET", path, headers={"accept-encoding": "gzip"})
        whole += len(connection.getresponse().read())
        connection.close()
    return whole / 1024


def training(repeats: int) -> list[Line]:
    """By which share a training is slower with viewers."""
    return slower(f"a training slower with {VIEWERS} viewers", repeats, beside=viewed)


def main() -> None:
    print_table(__doc__, {"cost": cost, "paint": paint, "training": training})


if __name__ == "__main__":
    main()
