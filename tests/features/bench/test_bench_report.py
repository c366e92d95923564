"""The report of a benchmark."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from report_helpers import ARMS, Page, leave_undrawn, make_bench_dir, rows

from orchestrator import report
from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.errors import UsageError
from orchestrator.report.document import Document, Figure, Table, Text


def sentences(document: Document, title: str) -> list[str]:
    return [
        sentence
        for section in document.sections
        if section.title == title
        for part in section.parts
        if isinstance(part, Text)
        for sentence in part.sentences
    ]


@pytest.mark.nightly
def test_a_level_with_jobs_that_failed_is_named_and_not_compared(tmp_path: Path) -> None:
    make_bench_dir(tmp_path)
    path = tmp_path / "bench/strong.json"
    strong = json.loads(path.read_text())
    strong["levels"]["4"]["jobs"][0]["state"] = "FAILED"
    path.write_text(json.dumps(strong))
    document = report.compose(tmp_path)
    assert sentences(document, "Makespan") == [
        "4 at once is left out, as not all jobs were completed: robot-0-s0 FAILED."
    ]
    assert [row.split(" | ")[0] for row in rows(document, "Makespan")] == ["1", "2"]


@pytest.mark.nightly
@pytest.mark.parametrize("content", ['{"format"', '{"format": 2}', '{"levels": {"1": {}}}'])
def test_strong_scaling_that_cannot_be_read_is_said_beside_all_the_rest(
    tmp_path: Path, content: str
) -> None:
    make_bench_dir(tmp_path)
    (tmp_path / "bench/strong.json").write_text(content)
    document = report.compose(tmp_path)
    [problem] = sentences(document, "Makespan")
    assert "strong.json: expected what this version of" in problem
    assert rows(document, "Scaling")


def test_headlines_show_bounds_as_bounds(tmp_path: Path) -> None:
    path = make_bench_dir(tmp_path) / "bench/cells.jsonl"
    cells = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    cells = [{**cell, "status": "cut"} if cell["level"] == 2 else cell for cell in cells]
    path.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    values = {headline.label: headline.value for headline in report.compose(tmp_path).headlines}
    assert values.pop("cores") == "2"
    assert len(values) == 3
    assert all(value.startswith("≤ ") for value in values.values())


@pytest.fixture(scope="module")
def bench_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bench_dir(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def document(bench_dir: Path) -> Document:
    return report.compose(bench_dir)


@pytest.mark.nightly
def test_benchmark_has_every_figure_and_number(tmp_path: Path) -> None:
    folder = report.make(make_bench_dir(tmp_path)).parent
    facts = json.loads((folder / "report.json").read_text())
    assert facts["kind"] == "benchmark"
    assert set(facts["figures"]) == {
        "scaling",
        "phases",
        "latency",
        "scaling-law",
        "makespan",
    }
    assert all(
        (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in facts["figures"]
    )
    assert list(facts["arms"]) == list(ARMS)
    for arm in ARMS:
        for level in ("1", "2", "4"):
            one = facts["arms"][arm]["levels"][level]
            for estimate in (
                one["throughput"],
                one["speedup"],
                one["efficiency"],
                *one["phases"].values(),
            ):
                assert {"value", "low", "high"} <= estimate.keys(), (arm, level)
    pinned, default = (facts["arms"][arm]["levels"]["2"] for arm in ("pinned", "default"))
    assert pinned["efficiency"]["value"] == pytest.approx(1.0, abs=0.05)
    assert default["efficiency"]["value"] < 0.3
    assert default["update_s"]["value"] == pytest.approx(5 * 12 / 640, rel=0.1)
    assert pinned["update_s"]["value"] == pytest.approx(5 / 640, rel=0.1)


def test_benchmark_page_has_its_facts(
    bench_dir: Path, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_undrawn(monkeypatch)
    page = Page(report.make(bench_dir))
    for text in ("pool-fork-pinned × 2", "Method", "cut off after 60 s", "of the bound", "A <CPU>"):
        assert text in page.text, text
    assert "<hopper>" in page.text or find_spec("orchestrator.features.verify") is None
    assert "hopper" not in {tag for tag, _ in page.tags}
    for figure in document.figures():
        assert figure.caption in page.text


def test_whatever_speaks_of_intervals_names_their_method(document: Document) -> None:
    captions = {
        part.caption
        for section in document.sections
        for part in section.parts
        if isinstance(part, Table | Figure)
    }
    of_intervals = [caption for caption in captions if "95 %" in caption]
    assert len(of_intervals) >= 2, "speed-up, the table, perhaps a certificate"
    for caption in of_intervals:
        assert INTERVALS in caption


def test_bounds_have_no_interval_and_a_warning_is_given_once(document: Document) -> None:
    text = "\n".join(rows(document, "Scaling"))
    assert re.search(r"pinned × 1 \| [\d,]+ \([^)]*\) \| 1 \| 100% \| 5 \|", text)
    assert re.search(
        r"pool-spawn × 4 \| ≤ [\d.,]+ \| ≤ [\d.]+ \| ≤ 20% \| 5 \| 5 measurements cut off; cut off after",
        text,
    )
    assert str(sentences(document, "Prediction")).count("ot to be relied on") == 1
    assert rows(document, "Latency")


@pytest.mark.usefixtures("undrawn")
def test_uncounted_measurements_are_reported_and_baselines_keep_their_order(tmp_path: Path) -> None:
    root = make_bench_dir(tmp_path / "bench", repeats=3)
    path = root / "bench/cells.jsonl"
    cells = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    for cell in cells:
        if (cell["arm"], cell["level"]) == ("threads", 2) and cell["repeat"] < 2:
            cell |= {"status": "failed", "throughput": None, "message": "a hog"}
        if (cell["arm"], cell["level"]) == ("pool-fork", 4):
            cell |= {
                "status": "failed",
                "throughput": None,
                "processes": [],
                "message": "<b>exit 1",
            }
    path.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    page = Page(report.make(root))
    assert "2 failed measurements left out; a hog" in page.text
    assert "pool-fork at 4: nothing could be measured. <b>exit 1" in page.text
    assert list(json.loads((root / "report/report.json").read_text())["arms"]) == list(ARMS)


@pytest.mark.nightly
def test_benchmark_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    root = make_bench_dir(tmp_path / "bench", levels=(1,), repeats=1)
    cells = (root / "bench/cells.jsonl").read_text().splitlines(keepends=True)
    (root / "bench/cells.jsonl").write_text(cells[0] + '{"arm":')
    for name in ("bench/strong.json", "certificate.json"):
        (root / name).unlink()
    report.make(root)
    facts = json.loads((root / "report/report.json").read_text())
    assert list(facts["arms"]) == ["pinned"]
    assert facts["arms"]["pinned"]["levels"]["1"]["throughput"]["low"] is None


def test_benchmark_without_a_finished_measurement_is_refused(tmp_path: Path) -> None:
    root = make_bench_dir(tmp_path / "bench")
    for name in ("cells.jsonl", "strong.json"):
        (root / "bench" / name).unlink()
    with pytest.raises(UsageError, match="no measurement of this benchmark is finished"):
        report.make(root)
