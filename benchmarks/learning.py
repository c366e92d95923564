"""Does the fast learner learn as well as stock Stable-Baselines3? Tables and pictures of "What it
learns" in docs/results.md.

    python -m orchestrator run benchmarks/learning.toml --learner sb3 --run-dir runs/learning-sb3
    python -m orchestrator run benchmarks/learning.toml --learner fast --run-dir runs/learning-fast
    python -m benchmarks.learning runs/learning-sb3 runs/learning-fast [--output docs/figures]

With ``--published RUN``, a run of ``benchmarks/published.toml``, it also compares with published
results. Prints Markdown, writes ``learning-*.png``, and does not change the run directories. All
seeds are fixed: the same runs give the same text.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from benchmarks import learning_figures, published
from benchmarks.learning_runs import LEAST_SEEDS, MEASURES, Side, Trained, in_common, read, values
from benchmarks.permutation_tests import Pair, energy_distance, holm, interval, p_value
from orchestrator.analysis.statistics import estimate
from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed


def mean_std(returns: Sequence[float]) -> str:
    """``1,234 ± 56``: mean and sample standard deviation over seeds."""
    return (
        f"{np.mean(returns):,.0f} ± {np.std(returns, ddof=1):,.0f}"
        if len(returns) > 1
        else f"{returns[0]:,.0f}"
    )


def signed(number: float) -> str:
    if math.isfinite(number):
        return f"{number:+.2f}".replace("-", "−")
    return "+∞" if number > 0 else "−∞"


def probability(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def comparison(a: Side, b: Side, robots: Sequence[str], measure: str) -> list[str]:
    """The table of one measure: one line per robot, and one for all of them."""
    returns = {
        robot: (values(a.robots[robot], measure), values(b.robots[robot], measure))
        for robot in robots
    }
    pairs = {robot: Pair(np.array(x), np.array(y)) for robot, (x, y) in returns.items() if x and y}
    if not pairs:
        return []
    lines = [
        f"{MEASURES[measure]}; mean ± standard deviation over seeds.",
        "",
        f"| robot | {_label(a, b, 0)} | {_label(a, b, 1)} | difference in standard deviations (95 %) | p | p, Holm |",
        "|---|---|---|---|---|---|",
    ]
    for (robot, pair), cells in zip(pairs.items(), tested(pairs.values()), strict=True):
        lines.append(
            f"| {robot} | {mean_std(pair.a.tolist())} | {mean_std(pair.b.tolist())} | {cells} |"
        )
    if len(pairs) > 1:
        everything = list(pairs.values())
        lines += [
            f"| **all {len(pairs)}** | | | **{_difference(everything)}** | **{probability(p_value(everything))}** | |",
            "",
            "Any difference of the distributions (energy distance, all robots):"
            f" p = {probability(p_value(everything, energy_distance))}.",
        ]
    return [*lines, ""]


def tested(pairs: Collection[Pair]) -> list[str]:
    """Of each pair the cells of a table: the difference with its interval, p, and p with Holm's
    correction."""
    p = [p_value([pair]) for pair in pairs]
    return [
        f"{_difference([pair])} | {probability(alone)} | {probability(corrected)}"
        for pair, alone, corrected in zip(pairs, p, holm(p), strict=True)
    ]


def _label(a: Side, b: Side, place: int) -> str:
    name = (a, b)[place].learner
    return f"{name} ({'AB'[place]})" if a.learner == b.learner else name


def _difference(pairs: Sequence[Pair]) -> str:
    low, high = interval(pairs)
    middle = float(np.mean([pair.difference for pair in pairs]))
    return f"{signed(middle)} ({signed(low)} to {signed(high)})"


def against_published(side: Side, figures: str | None = None) -> list[str]:
    """Comparison with published results, and whether the returns lie in the range of those with the
    same settings.

    :param figures: as in :func:`report`.
    :raises UsageError: a robot of :data:`published.ROBOTS` is missing.
    """
    ours = {robot: _of(side, robot) for robot in published.ROBOTS}
    seeds = "/".join(str(len(trained)) for trained in ours.values())
    versions = "/".join(
        sorted({name.partition("-")[2] for name in side.robots if name.partition("-")[0] in ours})
    )
    lines = [
        f"| source | robots | runs | what is given | other settings | {' | '.join(published.ROBOTS)} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for measure, what in (
        ("final", "last 100 episodes of training"),
        ("evaluated", "deterministic evaluation"),
    ):
        columns = [values(ours[robot], measure) for robot in published.ROBOTS]
        if all(columns):
            row = " | ".join(f"**{mean_std(one)}**" for one in columns)
            lines.append(
                f"| **`{side.learner}`, here** | {versions} | {seeds} | {what}, mean ± std | | {row} |"
            )
    for source in (*published.RECIPE, *published.OTHERS):
        row = " | ".join(str(source.returns.get(robot, "–")) for robot in published.ROBOTS)
        lines.append(
            f"| [{source.name}]({source.address}) | {source.versions} | {source.runs} | {source.figure} |"
            f" {source.differs} | {row} |"
        )
    lines += [
        "",
        "| robot | here (95 % interval of the mean) | means of the same settings | with their spread | |",
        "|---|---|---|---|---|",
    ]
    for robot, trained in ours.items():
        returns = values(trained, "final")
        least, most = published.means(robot)
        low, high = published.band(robot)
        mean = float(np.mean(returns))
        verdict = "within"
        if not low <= mean <= high:
            verdict = "above" if mean > high else "below"
        lines.append(
            f"| {robot} | {_mean_interval(returns)} | {least:,.0f} – {most:,.0f} | {low:,.0f} – {high:,.0f} |"
            f" {verdict} |"
        )
    return [
        *lines,
        "",
        *_image(figures, "learning-published", "Final returns among those that others report"),
    ]


def _of(side: Side, robot: str) -> Sequence[Trained]:
    for name, trained in side.robots.items():
        if name.partition("-")[0] == robot:
            return trained
    raise UsageError(
        f"no finished seed of {robot} among {listed(list(side.robots), 5)}: --published takes a run of "
        "benchmarks/published.toml"
    )


def _mean_interval(returns: Sequence[float]) -> str:
    """The mean with Student's 95 % interval."""
    mean = float(np.mean(returns))
    if len(returns) < LEAST_SEEDS:
        return f"{mean:,.0f}"
    found = estimate(returns)
    return f"{mean:,.0f} ({found.low:,.0f} – {found.high:,.0f})"


# -- the command


def report(a: Side, b: Side, figures: str | None = None) -> str:
    """The comparison of two runs, as Markdown.

    :param figures: folder of the figures in links; None where none are drawn.
    """
    robots = in_common(a, b)
    seeds = min(len(side.robots[robot]) for side in (a, b) for robot in robots)
    env_steps = sorted(
        {one.env_steps for robot in robots for one in (*a.robots[robot], *b.robots[robot])}
    )
    lines = [
        f"{len(robots)} robots, {_label(a, b, 0)} against {_label(a, b, 1)}, at least {seeds} seeds each,"
        f" {' or '.join(f'{steps:,}' for steps in env_steps)} env_steps.",
        "",
    ]
    for place, side in enumerate((a, b)):
        if side.unfinished:
            names = listed(list(side.unfinished), 5)
            lines += [f"**Incomplete**: of {_label(a, b, place)}, {names} have not succeeded.", ""]
    lines += _image(
        figures, "learning-curves", "Learning curves: seeds (thin) and their means (thick)"
    )
    for measure in MEASURES:
        lines += comparison(a, b, robots, measure)
    return "\n".join(lines)


def _image(folder: str | None, name: str, title: str) -> list[str]:
    return [] if folder is None else [f"![{title}]({folder}/{name}.png)", ""]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sb3_run", type=Path, help="run directory of benchmarks/learning.toml with --learner sb3"
    )
    parser.add_argument("fast_run", type=Path, help="the same with --learner fast")
    parser.add_argument(
        "--published", type=Path, metavar="RUN", help="run directory of benchmarks/published.toml"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder for the figures, such as docs/figures"
    )
    given = parser.parse_args(arguments)
    try:
        a = read(given.sb3_run)
        b = read(given.fast_run)
        folder = None if given.output is None else given.output.name
        print(report(a, b, folder))
        side = None if given.published is None else read(given.published)
        if side is not None:
            print("\n".join(against_published(side, folder)))
        if given.output is not None:
            learning_figures.write(given.output, _drawn(a, b, side))
    except (UsageError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _drawn(a: Side, b: Side, long: Side | None) -> list[tuple[str, bytes]]:
    """Names and PNG files of the figures; ``long`` is the run for the comparison with published
    results."""
    labels = [_label(a, b, place) for place in (0, 1)]
    robots = in_common(a, b)
    figures = learning_figures.comparison(
        labels, [{robot: side.robots[robot] for robot in robots} for side in (a, b)]
    )
    if long is not None:
        returns = {robot: _of(long, robot) for robot in published.ROBOTS}
        figures += learning_figures.published_results(long.learner, returns)
    return figures


if __name__ == "__main__":
    sys.exit(main())
