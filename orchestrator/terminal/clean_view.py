"""What ``clean`` shows: each kind of leftover with its number and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.client.cleaning import KINDS, Cleaned
from orchestrator.core.columns import Column, number_column
from orchestrator.core.text import count
from orchestrator.terminal.output import bytes_text, show_table


def show(cleaned: Cleaned) -> None:
    kinds = [row for row in facts(cleaned)["kinds"] if row["count"]]
    if not kinds:
        print(f"{cleaned.run_dir}: there is nothing to remove")
        return
    columns: Sequence[Column[Any]] = [
        Column("kind", lambda row: row["kind"]),
        number_column("items", lambda row: f"{row['count']:,}"),
        number_column("size", lambda row: bytes_text(row["bytes"])),
    ]
    show_table(columns, kinds, below=["", f"{cleaned.run_dir}: {_outcome(cleaned)}"])


def _outcome(cleaned: Cleaned) -> str:
    """What was removed, or would be."""
    items = count(len(cleaned.leftovers), "item")
    if cleaned.problems:
        return f"removed {len(cleaned.leftovers) - len(cleaned.problems):,} of {items}"
    size = bytes_text(sum(found.size for found in cleaned.leftovers))
    if cleaned.is_removed:
        return f"removed {items}, {size}"
    return f"would remove {items}, {size}; nothing was removed"


def facts(cleaned: Cleaned) -> dict[str, Any]:
    """The same as JSON types."""
    of_kind = {
        kind: [found.size for found in cleaned.leftovers if found.kind == kind] for kind in KINDS
    }
    return {
        "run_dir": str(cleaned.run_dir),
        "removed": cleaned.is_removed,
        "kinds": [
            {"kind": kind, "count": len(sizes), "bytes": sum(sizes)}
            for kind, sizes in of_kind.items()
        ],
        "paths": [str(found.path) for found in cleaned.leftovers],
        "problems": list(cleaned.problems),
    }
