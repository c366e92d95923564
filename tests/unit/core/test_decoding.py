"""What crosses a process boundary as JSON comes back as it was sent, or is refused naming the
field."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pytest
from supervisor_helpers import make_spec

from orchestrator.core.decoding import checked_row, decode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, Progress
from orchestrator.core.worker_spec import WorkerSpec


@dataclass(frozen=True, kw_only=True)
class Whole:
    count: int
    share: float | None = None
    on: bool = False
    kind: Literal["a", "b"] = "a"
    names: Sequence[str] = ()
    sizes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cell: str | float | Sequence[str] | None = None
    point: tuple[int, float | None] = (0, None)


def test_nested_values_come_back_as_they_were() -> None:
    whole = Whole(
        count=3,
        share=0.5,
        kind="b",
        names=("x",),
        sizes={"leg": (1.0, 2)},
        options={"anything": [None, {"deep": 1.5}]},
    )
    assert decode(Whole, json.dumps(dataclasses.asdict(whole))) == whole


class Row(TypedDict):
    cpus: list[int]
    by_node: dict[str, list[int]]


def test_lists_stay_lists_in_a_row_however_deep_they_are() -> None:
    row = {"cpus": [0, 1], "by_node": {"a": [2, 3]}}
    assert checked_row(Row, row) == row


@pytest.mark.parametrize("cell", ["x", 2.5, 3, ("a", "b"), None])
def test_a_field_of_several_kinds_is_any_of_them(cell: str | float | tuple[str, ...]) -> None:
    whole = Whole(count=1, cell=cell, point=(3, 0.5))
    assert decode(Whole, json.dumps(dataclasses.asdict(whole))) == whole
    infinite = decode(Whole, '{"count": 1, "cell": Infinity, "point": [3, NaN]}')
    assert (infinite.cell, infinite.point) == (None, (3, None))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_none_where_there_may_be_none(text: str) -> None:
    assert decode(Whole, f'{{"count": 1, "share": {text}}}').share is None


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "[" * 100000,
        "{}",
        '{"count": 1, "colour": 2}',
        '{"count": true}',
        '{"count": 9223372036854775808}',
        '{"count": null}',
        '{"count": 1, "share": "x"}',
        '{"count": 1, "on": 1}',
        '{"count": 1, "kind": "c"}',
        '{"count": 1, "kind": []}',
        '{"count": 1, "names": ["a", 2]}',
        '{"count": 1, "cell": true}',
        '{"count": 1, "point": [1, 2.5, 3]}',
        '{"count": 1, "sizes": {"leg": ["x"]}}',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode(Whole, text)


def test_every_message_comes_back_as_it_was_sent() -> None:
    progress = Progress(
        phase="training", env_steps=2**40, ep_rew_mean=1, cpu_share=0.5, learner="sb3"
    )
    assert Progress.from_line(progress.to_line()) == progress
    record = ExitRecord(code=1, message="why", traceback="a\nb", resumed_from=7, eval_mean=-1.5)
    assert ExitRecord.from_json(record.to_json()) == record
    request = ExaminationRequest(
        xml="/a.xml", model_edits={"geom.a.size": [1, 2.5]}, alone=True, memory_mib=5
    )
    assert ExaminationRequest.from_line(request.to_line()) == request
    answer = ExaminationAnswer(
        warnings=("w",), hash="h", process_exits=True, figures={"bodies": 3, "root": None}
    )
    assert ExaminationAnswer.from_line(answer.to_line()) == answer


LATIN_1 = os.fsdecode(b"/dM\xfcl")
"""The name of a file that is not UTF-8."""


def test_text_of_other_processes_can_be_stored_and_paths_still_name_their_files() -> None:
    answer = ExaminationAnswer(
        problem=f"{LATIN_1}: no", warnings=(LATIN_1,), xml=LATIN_1, includes=[LATIN_1]
    )
    read = ExaminationAnswer.from_line(answer.to_line())
    assert (read.problem, read.warnings) == (r"/dM\udcfcl: no", (r"/dM\udcfcl",))
    assert (read.xml, read.includes) == (LATIN_1, (LATIN_1,))
    request = ExaminationRequest(xml=LATIN_1, search_path=LATIN_1, stage_to=LATIN_1)
    assert ExaminationRequest.from_line(request.to_line()) == request
    record = ExitRecord.from_json(json.dumps({"code": 1, "message": LATIN_1, "learner": LATIN_1}))
    assert (record.message, record.learner) == (r"/dM\udcfcl", r"/dM\udcfcl")
    spec = make_spec("a-s0", search_path=LATIN_1, env_kwargs={"folder": LATIN_1})
    assert WorkerSpec.from_json(spec.to_json().encode().decode()) == spec


def test_a_figure_that_is_not_finite_is_none_in_progress_and_exit_record() -> None:
    assert (
        Progress.from_line(Progress(phase="training", ep_rew_mean=math.nan).to_line()).ep_rew_mean
        is None
    )
    assert (
        ExitRecord.from_json(ExitRecord(code=0, message="", eval_mean=math.inf).to_json()).eval_mean
        is None
    )


def test_a_wrong_spec_is_refused() -> None:
    spec = make_spec("a-s0")
    values = json.loads(spec.to_json())
    assert WorkerSpec.from_json(spec.to_json()) == spec
    for changes, name in (
        ({"seed": "0"}, "seed"),
        ({"learner": "slow"}, "learner"),
        ({"normalise": True}, "normalise"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            WorkerSpec.from_json(json.dumps(values | changes))
