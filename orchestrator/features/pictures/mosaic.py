"""All robots of a run directory side by side in one video, each with its name and return."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import run_snapshot
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.files.video_file import GIF_FPS, as_video, frames, video_as_gif
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment.policy_process import PlayRequest, PolicyProcess
from orchestrator.features.pictures import drawing_processes
from orchestrator.features.pictures.drawing_processes import Drawing
from orchestrator.jobfile.job_names import without_seed
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.rows import fitness
from orchestrator.machine import topology
from orchestrator.machine.slots import SlotPool

if TYPE_CHECKING:
    from PIL import Image

FPS = 30
WIDEST = 1920
"""Pixels of the whole picture."""
TILE = (480, 360)
"""Largest width and height of one robot's picture."""
MOST_ROBOTS = 64
MOST_NAMED = 10
GIF_WIDTH = 960


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRobot:
    """A robot in the mosaic."""

    name: str
    episode_return: float | None
    """Mean return of its evaluation, or that of training where there was none."""
    video: Path

    @property
    def shown_return(self) -> str:
        """Empty where it is not known."""
        value = self.episode_return
        if value is None:
            return ""
        if abs(value) >= 10:
            return f"{value:,.0f}"
        return f"{round(value, 1) + 0.0:.1f}"  # 0.0 is added so that it is not -0.0


def make(
    run_dir: Path, request: PlayRequest, *, as_gif: bool, report: Callable[[str], object]
) -> list[Path]:
    """Write ``mosaic.mp4``, and ``mosaic.gif`` if asked to, into the run directory or the folder of
    ``request``.

    Of jobs that differ in their seed alone, the one with the highest return is shown.

    :param report: takes a message for each robot that cannot be shown.
    :raises UsageError: no job has a policy.
    :raises OrchestratorError: none of them could be played.
    """
    snapshot = run_snapshot.status(run_dir)
    chosen = _best_rows(snapshot.rows, snapshot.paths)
    if not chosen:
        raise UsageError(f"{run_dir}: no job has a model.zip, which is written when it succeeds")
    with_policy = {_robot(row) for row in chosen}
    robots = dict.fromkeys(map(_robot, snapshot.rows))
    without = [robot for robot in robots if robot not in with_policy]
    if without:
        report(
            f"left out, as they have no model.zip, which is written when a job succeeds: {listed(without, MOST_NAMED)}"
        )
    if len(chosen) > MOST_ROBOTS:
        report(
            f"{count(len(chosen), 'robot')}: the {MOST_ROBOTS} with the highest returns are shown"
        )
        chosen = sorted(chosen, key=lambda row: -_rank(row))[:MOST_ROBOTS]
    with TemporaryFolder() as folder:
        drawings = [
            RobotDrawing(
                snapshot.paths.job(row["job_id"]),
                replace(request, output=Path(folder) / row["job_id"]),
            )
            for row in chosen
        ]
        drawing_processes.run(drawings, SlotPool(topology.detect()), lambda: False)
        played = [
            PlayedRobot(name=_robot(row), episode_return=_return(row), video=one.video)
            for one, row in zip(drawings, chosen, strict=True)
            if not one.problem
        ]
        problems = [one.problem for one in drawings if one.problem]
        if not played:
            raise OrchestratorError(f"{run_dir}: {problems[0]}")
        for problem in problems:
            report(f"left out: {problem}")
        return _write(played, request.output or snapshot.paths.root, as_gif=as_gif)


@dataclass(slots=True)
class RobotDrawing:
    """A process that makes the video of one robot."""

    job: JobPaths
    request: PlayRequest
    problem: str = ""
    """Why there is no video."""
    time_limit_s: float = math.inf

    @property
    def left(self) -> tuple[str, ...]:
        return (self.job.root.name,)

    @property
    def video(self) -> Path:
        assert self.request.output is not None
        return self.request.output / "video.mp4"

    def begin(self, cpus: tuple[int, ...]) -> PolicyProcess:
        """It is not bound to ``cpus``: others may train there.

        :raises OSError: it cannot be started.
        """
        return PolicyProcess(self.job, self.request, is_quiet=True)

    def not_begun(self, why: str) -> None:
        """Remember why it cannot be started."""
        self.problem = f"{self.job.root.name}: {why}"

    def report_end(self, code: int, message: str) -> Sequence[Drawing]:
        """Remember how it has ended."""
        if code != 0:
            self.not_begun(message)
        return ()


def _best_rows(rows: Sequence[SummaryRow], paths: RunPaths) -> list[SummaryRow]:
    best: dict[str, SummaryRow] = {}
    for row in rows:
        robot = _robot(row)
        is_better = robot not in best or _rank(row) > _rank(best[robot])
        if is_better and paths.job(row["job_id"]).model.exists():
            best[robot] = row
    return list(best.values())


def _robot(row: SummaryRow) -> str:
    return without_seed(row["job_id"], row["seed"])


def _return(row: SummaryRow) -> float | None:
    return fitness(row["eval_mean"], row["ep_rew_mean"])


def _rank(row: SummaryRow) -> float:
    known = _return(row)
    return -math.inf if known is None else known


def _write(robots: Sequence[PlayedRobot], folder: Path, *, as_gif: bool) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    video = folder / "mosaic.mp4"
    write_whole(video, as_video(pictures(robots), FPS))
    if not as_gif:
        return [video]
    animated = folder / "mosaic.gif"
    write_whole(animated, video_as_gif(video, width=GIF_WIDTH, fps=GIF_FPS))
    return [video, animated]


def pictures(robots: Sequence[PlayedRobot]) -> Iterator[Image.Image]:
    """The pictures of the mosaic, in real time; a robot whose video is over stands still."""
    from PIL import Image

    columns = math.ceil(math.sqrt(len(robots)))
    rows = math.ceil(len(robots) / columns)
    # Even numbers, as the encoder of videos wants them.
    width = min(TILE[0], WIDEST // columns) // 2 * 2
    height = width * TILE[1] // TILE[0] // 2 * 2
    tiles = [_tiles(robot, width, height) for robot in robots]
    shown: list[Image.Image | None] = [None] * len(robots)
    while True:
        new = [next(one, None) for one in tiles]
        if not any(new):
            return
        shown = [fresh or before for fresh, before in zip(new, shown, strict=True)]
        whole = Image.new("RGB", (columns * width, rows * height), "white")
        for index, tile in enumerate(shown):
            row, column = divmod(index, columns)
            if tile is not None:
                whole.paste(tile, (column * width, row * height))
        yield whole


def _tiles(robot: PlayedRobot, width: int, height: int) -> Iterator[Image.Image]:
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    font = ImageFont.load_default(size=max(12, height // 15))
    in_a_line = int((width - 16) / font.getlength("0"))
    label = "\n".join([*textwrap.wrap(robot.name, in_a_line), robot.shown_return])
    for picture in frames(robot.video, FPS):
        tile = ImageOps.pad(picture, (width, height), Image.Resampling.BILINEAR, color="white")
        ImageDraw.Draw(tile).text(
            (8, 5), label, fill="white", font=font, stroke_width=2, stroke_fill="black"
        )
        yield tile
