"""Whatever the bytes of an MJCF are: a verdict in one line, whatever becomes of the process that
examines it, and none of it concerns another robot of the same check."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from fuzz_helpers import changed, emptied, fuzz
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.messages import ExaminationRequest
from orchestrator.examination import (
    examination_requests,
    side_by_side,
)

pytestmark = pytest.mark.nightly

MJCF = Path(__file__).parents[3] / "mjcf"
ROBOTS = [path.read_text() for path in sorted(MJCF.glob("*.xml")) if path.stem != "dog"]
"""Those without files of their own."""
ATTRIBUTE, ELEMENT = re.compile(r'(\w+)="([^"]*)"'), re.compile(r"<\w+[^<>]*/>")
VALUES = [
    *(
        "nan",
        "inf",
        "-inf",
        "1e308",
        "-1e308",
        "5e-324",
        "0",
        "-1",
        "",
        " ",
        "x",
        "1 2 3 4 5 6 7 8 9 10",
        "0 0 0",
    ),
    *(
        "2147483648",
        "-2147483649",
        "1e400",
        "9" * 5000,
        "1 " * 5000,
        "0x10",
        "&lt;",
        "&#1;",
        "\u0663",
        "../" * 50,
        "a\nb",
    ),
]
BOMBS = [
    *(
        '<size memory="900P"/>',
        '<size nuserdata="2000000000"/>',
        '<size nconmax="-5"/>',
        '<include file="m0.xml"/>',
    ),
    '<asset><texture name="big" type="2d" builtin="flat" width="400000" height="400000"/></asset>',
    '<asset><hfield name="h" nrow="100000" ncol="100000" size="1 1 1 1"/></asset>',
    '<asset><mesh name="m" vertex="0 0 0 0 0 0 0 0 0"/></asset>',
    '<worldbody><composite type="cable" count="99999 1 1" curve="s" size="1"><geom size=".1"/></composite></worldbody>',
    *(
        "<worldbody>" + "<body>" * depth + "</body>" * depth + "</worldbody>"
        for depth in (100, 3_000, 60_000)
    ),
    '<option timestep="1e-300"/>',
    '<option timestep="1e300" iterations="2000000000"/>',
    '<custom><text name="t" data="' + "x" * 300_000 + '"/></custom>',
    '<extension><plugin plugin="no.such"/></extension>',
]
LAUGHS = "".join(
    f'<!ENTITY {name} "{20 * f"&{before};"}">' for before, name in itertools.pairwise("bcdefgh")
)
"""Entities that grow to 10⁹ characters."""
PROLOGUES = [
    f'<!DOCTYPE a [<!ENTITY b "bb">{LAUGHS}]>',
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>',
    *(
        "<?xml version='1.0' encoding='utf-16'?>",
        "<!-- -- -->",
        "<!--" + "x" * 100_000 + "-->",
        "\ufeff",
        "<a/>",
        "\0",
    ),
]


def with_value(robot: str, place: int, value: str) -> str:
    """``robot`` with another value of one attribute."""
    found = list(ATTRIBUTE.finditer(robot))
    match = found[place % len(found)]
    return robot[: match.start(2)] + value + robot[match.end(2) :]


def repeated(robot: str, place: int, times: int) -> str:
    """``robot`` with one element several times, or without it."""
    found = list(ELEMENT.finditer(robot))
    match = found[place % len(found)]
    return robot[: match.start()] + match[0] * times + robot[match.end() :]


def with_bomb(robot: str, bomb: str) -> str:
    return robot.replace("<worldbody>", f"{bomb}<worldbody>", 1)


ROBOT, PLACE = st.sampled_from(ROBOTS), st.integers(0, 10_000)
TEXTS = st.one_of(
    st.builds(with_value, ROBOT, PLACE, st.sampled_from(VALUES)),
    st.builds(with_value, ROBOT, PLACE, st.sampled_from(VALUES)),
    st.builds(repeated, ROBOT, PLACE, st.sampled_from([0, 2, 500])),
    st.builds(with_bomb, ROBOT, st.sampled_from(BOMBS)),
    st.builds(str.__add__, st.sampled_from(PROLOGUES), ROBOT),
)
CONTENTS = st.one_of(
    TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    ROBOT.flatmap(lambda robot: changed(robot.encode())),
    st.tuples(ROBOT, PLACE).map(lambda pair: pair[0].encode()[: pair[1] % len(pair[0])]),
    ROBOT.map(lambda robot: robot.encode("utf-16")),
    st.binary(max_size=60),
)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks for terabytes is refused before it has taken gigabytes."""
    monkeypatch.setattr(examination_requests, "MEMORY_SHARE", 0.0)


def test_any_bytes_of_a_robot_are_refused_in_one_line_before_a_run(tmp_path: Path) -> None:
    """As ``run`` examines them: staged, with a task, and not alone."""

    @fuzz(1)
    @given(contents=st.lists(CONTENTS, min_size=4, max_size=8))
    def check(contents: list[bytes]) -> None:
        folder = emptied(tmp_path / "robots")
        staged, requests = emptied(tmp_path / "staged"), []
        for number, content in enumerate([*contents, (MJCF / "hopper.xml").read_bytes()]):
            xml = folder / f"m{number}.xml"
            xml.write_bytes(content)
            requests.append(
                ExaminationRequest(
                    xml=str(xml), task="auto", stage_to=str(staged / str(number)), simulate_s=0.005
                )
            )
        *answers, good = side_by_side.ask(requests, processes=2)
        assert good.problem is None
        for request, answer in zip(requests, answers, strict=False):
            assert (answer.problem is None) == (answer.xml is not None)
            if answer.problem is not None:
                assert "\n" not in answer.problem
                # Its own file, or one of the others that it includes.
                assert any(str(one.xml) in answer.problem for one in requests), request.xml

    check()
