"""What ``resume --all`` shows: a line for each experiment, as soon as it is resumed or left."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from orchestrator.client.resume_all import Resumption
from orchestrator.core.text import plain


def show(resumptions: Iterable[Resumption], *, as_json: bool) -> Sequence[Resumption]:
    """Print them; a JSON array of all at the end, if asked for. Returns all."""
    shown: list[Resumption] = []
    for one in resumptions:
        shown.append(one)
        if not as_json:
            print(plain(f"{one.run_dir}: {one.message}"), flush=True)
    if as_json:
        facts = [dataclasses.asdict(one) for one in shown]
        print(plain(json.dumps(facts, indent=1, ensure_ascii=False), keep="\n"))
    else:
        print(_summary(Counter(one.fate for one in shown)))
    return shown


def _summary(fates: Counter[str]) -> str:
    if not fates:
        return "no experiment was interrupted"
    return f"{fates['resumed']} resumed, {fates['left']} left as they are, {fates['failed']} failed"
