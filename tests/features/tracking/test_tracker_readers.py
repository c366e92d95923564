"""W&B and MLflow, read back by their own formats and clients."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tracker_helpers import (
    JOB,
    Rows,
    end,
    make_publisher,
    needs,
    send,
    tracked_run,
    turn,
    write_progress,
)

from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking.tracker_protocol import Position

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]  # warnings of the packages
POINT = "eval/grid/geom.*.friction 0.4 body.trunk.mass *0.7"
STILL = io.BytesIO()
Image.new("RGB", (8, 6)).save(STILL, "PNG")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return tracked_run(tmp_path / "run")


@pytest.fixture(params=["wandb", "mlflow"])
def backend(request: pytest.FixtureRequest) -> str:
    needs(request.param)
    return str(request.param)


def test_others_have_no_point_twice_after_a_kill(paths: RunPaths, backend: str) -> None:
    options = {"mode": "offline"} if backend == "wandb" else {}
    rows = Rows()
    write_progress(paths, [100, 200])
    first = make_publisher(paths, backend, **options)
    turn(first, rows)
    [where] = (paths.job(JOB).root / "track").glob(f"{backend}-*.json")
    before = where.read_bytes()
    write_progress(paths, [100, 200, 300, 400])
    turn(first, rows)
    first.close()
    where.write_bytes(before)
    end(paths, rows)
    send(paths, rows, backend, is_last=True, **options)
    note = json.loads(where.read_bytes())
    where.write_text(
        json.dumps({**note, "env_steps": 400, "final": None})
    )  # killed before it noted the results
    send(paths, rows, backend, is_last=True, **options)
    paths.job(JOB).preview.write_bytes(STILL.getvalue())
    notes, write = [], Position.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Position,
            "write",
            lambda note, path: (notes.append(path.read_bytes()), write(note, path)),
        )
        send(paths, rows, backend, is_last=True, **options)
    where.write_bytes(notes[-1])  # killed before it noted the preview
    for _ in range(2):
        send(paths, rows, backend, is_last=True, **options)
    if backend == "wandb":
        from orchestrator.features.tracking import wandb_tracker

        logs = sorted(paths.root.glob("wandb/offline-run-*/*.wandb"))
        steps = [step for log in logs for step in wandb_tracker.logged_steps(log)]
        assert steps == [100, 200, 300, 400, 401, 402]
        kinds = [
            record.WhichOneof("record_type")
            for log in logs
            for record in wandb_tracker.records(log)
        ]
        assert {"run", "summary", "exit"} <= set(kinds)
        assert any(POINT.encode() in log.read_bytes() for log in logs)
        assert "environment" not in kinds, "the program, its arguments, the machine and its user"
        assert sys.executable.encode() not in b"".join(log.read_bytes() for log in logs)
        assert not list(paths.root.glob("wandb/*/files/requirements.txt"))
        assert len(list(paths.root.glob("wandb/offline-run-*/files/media/images/*.png"))) == 1
        configured = [
            record.run
            for record in wandb_tracker.records(logs[0])
            if record.WhichOneof("record_type") == "run"
        ]
        assert not configured[0].host
        assert "hyperparameters.learning_rate" in {item.key for item in configured[0].config.update}
        return
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{paths.root / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("robots").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [100, 200, 300, 400]
    assert run.info.status == "FINISHED"
    assert run.data.params["hyperparameters.learning_rate"] == "0.001"
    assert named(run.data.params, "randomize.geom._.friction ") == ["['uniform(0.4, 1.2)', 0.1]"]
    assert named(run.data.params, "randomize.geom.foot_.friction ") == ["scale(1, 2)"] * 2, (
        "two patterns"
    )
    assert named(run.data.params, "randomize.geom.a_/b.friction ") == ["scale(1, 2)"]
    assert [
        metric.value
        for metric in client.get_metric_history(run.info.run_id, "eval/deterministic/mean")
    ] == [7.0]
    assert named(run.data.metrics, "eval/grid/geom._.friction 0.4 body.trunk.mass _0.7 ") == [5.0]
    assert named(run.data.metrics, "summary/model.geom._.density ") == [450]
    assert named(run.data.tags, "summary.model.body.__thigh.pos ") == ["*0.7"]
    assert run.data.tags["summary.state"] == "SUCCEEDED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == [
        "eval.json",
        "preview.png",
    ]


def named(values: Mapping[str, Any], beginning: str) -> list[Any]:
    """Those of ``values`` whose name is ``beginning`` and a hash."""
    return [
        value
        for name, value in values.items()
        if re.fullmatch("[0-9a-f]{8}", name.removeprefix(beginning))
    ]
