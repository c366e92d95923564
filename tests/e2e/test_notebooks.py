"""The notebooks in ``examples/`` run from their first to their last cell in a kernel of
Jupyter's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest

TIMESTEPS = re.compile(r"total_timesteps=[\d_]+")
NOTEBOOKS = sorted((commands.REPOSITORY / "examples").glob("*.ipynb"))


def executed(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The outputs of all cells; an exception in one of them is raised. Runs in the folder of
    ``path``."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(commands.REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(path.parent / ".ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(path.parent / ".jupyter"))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # those of the notebook's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_example_runs_in_its_own_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mjcf").symlink_to(commands.REPOSITORY / "mjcf")
    copy = tmp_path / "examples" / path.name
    copy.parent.mkdir()
    text = TIMESTEPS.sub("total_timesteps=1024", path.read_text())
    for usual, tiny in (
        ("trials=24", "trials=4"),
        ("20_480", "512"),
        ('\\"n_steps\\": 256', '\\"n_steps\\": 64'),
    ):
        text = text.replace(usual, tiny)
    copy.write_text(text)
    outputs = executed(copy, monkeypatch)
    if path.stem == "train_a_folder":
        pages = [
            output["data"]["text/html"]
            for output in outputs
            if "text/html" in output.get("data", {})
        ]
        assert "3 of 3 jobs succeeded" in pages[0], "the live table is replaced in place"
        assert pages[1].count("<td>SUCCEEDED</td>") == 3
        assert "distance_m" in pages[1]
    if path.stem == "evolve_a_body":
        printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
        assert printed.count("model.geom.*thigh*.size") == printed.count("trial ") >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_example_holds_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert [
        cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")
    ] == []
