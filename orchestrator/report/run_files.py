"""Reading what workers write, while they may still be writing it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CURVE_POINTS = 120
"""A learning curve is thinned to about these; more cannot be told apart in a figure."""
SUMMED = (
    *("wall_s", "rollout_s", "env_s", "policy_s", "gae_s", "train_s", "backward_s", "optimizer_s", "cpu_s"),
    *("run_delay_s", "voluntary_switches", "involuntary_switches", "throttled_s", "allreduce_s"),
)


def read_json(path: Path) -> Any:
    """None when it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def certificate(run_dir: Path) -> dict[str, Any] | None:
    """What ``verify`` left in a run directory; None when it did not."""
    found = read_json(run_dir / "certificate.json")
    return found if isinstance(found, dict) and isinstance(found.get("jobs"), list) else None


def numbers(path: Path, columns: Sequence[str]) -> Iterator[list[float | None]]:
    """The named columns of a CSV file, row by row; None where a cell is empty, missing or no finite number.

    A last line without its end is still being written and left out. A missing file has no rows.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace").replace("\0", "")
    except OSError:
        return
    lines = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    try:
        header = next(lines, [])
        places = [header.index(name) if name in header else None for name in columns]
        for line in lines:
            yield _whole(line, places) or [_number(line, place) for place in places]
    except csv.Error:
        return  # what was read up to there is sound


def _whole(line: Sequence[str], places: Sequence[int | None]) -> list[float | None] | None:
    """All of them at once; None where one of them is not there. Nearly every row is such, and there are many rows."""
    try:
        values = [float(line[place]) for place in places]  # type: ignore[index]
    except (ValueError, IndexError, TypeError):
        return None
    return [*values] if math.isfinite(sum(values)) else None


def _number(line: Sequence[str], place: int | None) -> float | None:
    try:
        value = float(line[place]) if place is not None else math.nan
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def curve(path: Path) -> list[tuple[float, float]]:
    """``(env_steps, ep_rew_mean)`` from ``progress.csv``, thinned to about :data:`CURVE_POINTS`; the last one stays."""
    points = [
        (steps, value)
        for steps, value in numbers(path, ("time/total_timesteps", "rollout/ep_rew_mean"))
        if steps is not None and value is not None
    ]
    stride = max(1, math.ceil(len(points) / CURVE_POINTS))
    return points[::stride] + ([points[-1]] if points and (len(points) - 1) % stride else [])


def timings(path: Path) -> dict[str, float | None]:
    """Sums over the iterations of ``timings.csv``, with ``iterations``, ``env_steps``, ``rss_mib`` and ``n_threads``.

    A figure that no row has is None. ``env_steps`` is what the rows cover, the last two are the highest.
    """
    sums: dict[str, float | None] = dict.fromkeys(SUMMED)
    iterations, env_steps = 0, 0.0
    highest: dict[str, float | None] = {"rss_mib": None, "n_threads": None}
    for steps, rss_mib, n_threads, *parts in numbers(path, ("env_steps", *highest, *SUMMED)):
        if steps is None or parts[0] is None:
            continue
        iterations, env_steps = iterations + 1, steps
        for name, value in zip(SUMMED, parts, strict=True):
            if value is not None:
                sums[name] = (sums[name] or 0.0) + value
        for name, value in (("rss_mib", rss_mib), ("n_threads", n_threads)):
            if value is not None:
                highest[name] = max(value, highest[name] or 0.0)
    return {"iterations": iterations, "env_steps": env_steps, **sums, **highest}


def evaluation(path: Path) -> dict[str, Any] | None:
    """Of ``eval.json``: mean, deviation and measures of both kinds of episodes; None when there is none."""
    found = read_json(path)
    if not isinstance(found, Mapping):
        return None
    kinds = {kind: _episodes(found[kind]) for kind in ("deterministic", "stochastic") if kind in found}
    return {"episodes": found.get("episodes"), **kinds}


def _episodes(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        return {"mean": None, "std": None, "measures": {}}
    measures = found.get("measures")
    return {
        "mean": _real(found.get("mean")),
        "std": _real(found.get("std")),
        "measures": {
            str(name): _real(measure.get("mean"))
            for name, measure in (measures if isinstance(measures, Mapping) else {}).items()
            if isinstance(measure, Mapping)
        },
    }


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
