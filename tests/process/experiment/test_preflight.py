"""Preflight: one clear message for whatever is wrong with a robot or environment, and a bundle that
stands alone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import pytest
from command_helpers import bow_to_permissions

from orchestrator.client import dry_run
from orchestrator.client.options import RunOptions
from orchestrator.core.errors import DiskFullError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.examination import side_by_side
from orchestrator.examination.preflight import JobVerdict, examine
from orchestrator.executors.local import problems_on
from orchestrator.jobfile import from_mapping
from orchestrator.machine import topology
from orchestrator.server.verdicts import examined_job, judged
from orchestrator.worker.robots.preflight_child import check

ROOT = Path(__file__).parents[3]
HOPPER = ROOT / "mjcf" / "hopper.xml"

ROBOT = """<mujoco>{head}<worldbody><body name="trunk" pos="0 0 1"><freejoint/><geom {geom}/>
<body pos="0.3 0 0"><joint name="limb" axis="0 1 0"/><geom size="0.1"/></body></body></worldbody>
<actuator><motor joint="limb"/></actuator></mujoco>"""


def ask(
    *requests: dict[str, Any], before: Callable[[], None] | None = None
) -> list[dict[str, Any]]:
    """Through the real child process."""
    command = [sys.executable, "-m", "orchestrator.worker.robots.preflight_child"]
    done = subprocess.run(
        command,
        input="".join(json.dumps(request) + "\n" for request in requests),
        preexec_fn=before,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_robot(
    xml: Path, task: str = "forward", stage_to: Path | None = None, **options: Any
) -> ExaminationAnswer:
    staging = None if stage_to is None else str(stage_to)
    request = ExaminationRequest(
        xml=str(xml), task=task, stage_to=staging, task_options=options, allow_outside=True
    )
    return check(request)


def problem_of(xml: Path, **options: Any) -> str:
    answer = check_robot(xml, **options)
    assert answer.problem is not None
    assert answer.xml is None
    assert answer.hash is None
    assert "\n" not in answer.problem
    return answer.problem


def test_main_answers_in_order_with_nothing_else_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "noisy_env.py").write_text(
        "import os, gymnasium\nprint('imported')\nos.system('echo from a child')\n"
        "def make_env(xml, seed, **kwargs):\n    print('made', seed)\n    return gymnasium.make('Pendulum-v1')\n"
    )
    good, missing, noisy = ask(
        {"xml": str(HOPPER), "task": "forward", "stage_to": str(tmp_path / "staged")},
        {"xml": str(tmp_path / "no.xml"), "task": "forward", "stage_to": None},
        {"entry_point": "noisy_env:make_env", "search_path": str(tmp_path)},
    )
    assert (good["problem"], good["xml"]) == (None, "hopper.xml")
    assert len(good["hash"]) == 64
    assert missing["problem"] == f"{tmp_path / 'no.xml'}: no such file"
    assert noisy["problem"] is None


@pytest.mark.nightly
def test_a_thread_that_an_environment_leaves_behind_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time, gymnasium\n"
        "def make_env(xml, seed):\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    return gymnasium.make('Pendulum-v1')\n"
    )
    (answer,) = ask({"entry_point": "threaded:make_env", "search_path": str(tmp_path)})
    assert answer["problem"] is None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", None),
        (bytes(range(256)) * 20, None),
        (b"<mujoco>\n<worldbody>\n", 2),
        (b"<mujoco>\n<option timestep='1></mujoco>", 2),
        (b"<mujoco>\n<worldbody>\n<geom tpe='box'/></worldbody></mujoco>", 3),
        (b"<robot name='u'/>", None),
        (b"<mujoco><worldbody/></mujoco>", None),
        (
            b"<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>",
            None,
        ),
        (b"<mujoco><include file='self.xml'/></mujoco>", 1),
        (b"<mujoco>\n<include file='no.xml'/></mujoco>", 2),
        (b"<mujoco><asset>\n\n<mesh file='m.stl'/></asset></mujoco>", 3),
        (b"<mujoco><asset>\n<mesh file='M\xfcl.stl'/></asset></mujoco>", 2),
    ],
)
def test_a_bad_file_gets_one_message_with_its_place(
    content: bytes, line: int | None, tmp_path: Path
) -> None:
    xml = tmp_path / "self.xml"
    xml.write_bytes(content)
    place = f"{xml}: " if line is None else f"{xml}, line {line}: "
    assert problem_of(xml).startswith(place)


def test_what_is_not_a_readable_file_is_named(tmp_path: Path) -> None:
    assert problem_of(tmp_path) == f"{tmp_path}: cannot be read: is not a regular file"
    pipe = tmp_path / "pipe.xml"
    os.mkfifo(pipe)
    assert problem_of(pipe) == f"{pipe}: cannot be read: is not a regular file"
    below = HOPPER / "x.xml"
    assert problem_of(below) == f"{below}: cannot be read: Not a directory"
    assert "cannot be read" in problem_of(tmp_path / "zero\0.xml")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    xml = tmp_path / "secret.xml"
    xml.write_text("<mujoco/>")
    xml.chmod(0)
    request = {"xml": str(xml), "task": "forward"}
    assert (
        ask(request, before=bow_to_permissions)[0]["problem"]
        == f"{xml}: cannot be read: Permission denied"
    )


def test_messages_show_the_users_path_not_the_staged_one(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(ROBOT.format(head="", geom='type="mesh" mesh="no"'))
    (tmp_path / "bad.xml").write_text(
        ROBOT.format(head='<asset><mesh file="m.obj"/></asset>', geom='type="mesh" mesh="m"')
    )
    (tmp_path / "m.obj").write_text("junk")
    for name in ("robot.xml", "bad.xml"):
        answer = check_robot(tmp_path / name, stage_to=tmp_path / "staged")
        assert answer.problem is not None
        assert answer.problem.startswith(str(tmp_path / name))
        assert "staged" not in answer.problem


def test_task_and_robot_problems_name_the_robot() -> None:
    assert problem_of(HOPPER, task="fly")
    assert problem_of(HOPPER, speed=2)
    assert problem_of(HOPPER, task="balance")


def test_an_edited_robot_is_what_is_examined_and_bundled(tmp_path: Path) -> None:
    plain = check_robot(HOPPER)
    asked = ExaminationRequest(
        xml=str(HOPPER),
        task="forward",
        model_edits={"option.timestep": 0.004},
        stage_to=str(tmp_path),
    )
    answer = check(asked)
    assert (answer.problem, answer.figures["timestep_s"]) == (None, 0.004)
    assert answer.hash != plain.hash
    assert answer.xml is not None
    assert mujoco.MjModel.from_xml_path(str(tmp_path / answer.xml)).opt.timestep == 0.004
    problem = check(
        ExaminationRequest(xml=str(HOPPER), task="forward", model_edits={"geom.nose.size": 1})
    ).problem
    assert problem is not None
    assert problem.startswith(f"{HOPPER}: ")
    assert "nose" in problem


def test_a_robot_that_diverges_at_once_is_refused(tmp_path: Path) -> None:
    xml = tmp_path / "wild.xml"
    xml.write_text(
        HOPPER.read_text().replace(
            'name="hip" range', 'name="hip" stiffness="1e30" springref="90" range'
        )
    )
    assert "physics diverges" in problem_of(xml)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_known_by_its_number_whatever_the_text(error: int, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(error, "kein Platz")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.worker.robots.bundle.Bundle.write", full)
        answer = check_robot(HOPPER)
    assert answer.errno == error
    (job,) = from_mapping(
        {"name": "x", "jobs": [{"name": "h", "xml": str(HOPPER), "task": "forward"}]},
        source="x.toml",
        base=tmp_path,
    ).jobs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "ask", lambda *_, **__: [answer])
        with pytest.raises(DiskFullError):
            examine([job], staging=tmp_path, processes=1)


def test_a_job_that_the_machine_is_too_small_for_keeps_the_task_chosen_for_it(
    tmp_path: Path,
) -> None:
    xml = tmp_path / "a.xml"
    xml.touch()
    jobs = [{"xml": str(xml), "resources": {"cores": 100_000}}]
    experiment = from_mapping(
        {"name": "big", "jobs": jobs}, source="big", base=tmp_path, skip_invalid=True
    )
    (job,) = experiment.jobs
    examined = {"a-s0": JobVerdict(xml="a.xml", task="forward")}
    verdicts, problems = judged(
        [job], examined, lambda job: problems_on(topology.detect(), job), {}
    )
    assert "100000 cores" in str(problems[0]).replace(",", "")
    assert verdicts["a-s0"].lacks_room
    assert examined_job(job, verdicts["a-s0"]).spec.task == "forward"


def test_a_dry_run_tells_how_many_robots_it_has_examined(tmp_path: Path) -> None:
    jobs = [
        {"name": name, "xml": str(HOPPER), "task": task}
        for name, task in (("a", "forward"), ("b", "stand"))
    ]
    experiment = from_mapping({"name": "two", "jobs": jobs}, source="two", base=tmp_path)
    counts: list[tuple[int, int]] = []
    dry_run.dry_run(
        experiment,
        RunOptions(run_dir=tmp_path / "run"),
        watch=lambda *now: counts.append(now),
    )
    assert counts[0][0] == 0
    assert counts[-1] == (2, 2)


@pytest.mark.nightly
def test_a_file_elsewhere_needs_the_jobs_permission(tmp_path: Path) -> None:
    robot = tmp_path / "robot/main.xml"
    robot.parent.mkdir()
    robot.write_text(
        HOPPER.read_text().replace("</mujoco>", '<include file="../key.xml"/></mujoco>')
    )
    (tmp_path / "key.xml").write_text("<mujoco><size memory='1M'/></mujoco>")
    jobs = [{"name": name, "xml": str(robot), "allow_outside": name == "b"} for name in "ab"]
    declared = from_mapping({"name": "x", "jobs": jobs}, source="x.toml", base=robot.parent).jobs
    verdicts = examine(declared, staging=tmp_path / "staging", processes=1)
    problem = str(verdicts["a-s0"].problem)
    assert all(part in problem for part in (str(robot), f"{tmp_path}/key.xml", "allow_outside"))
    assert verdicts["b-s0"].problem is None
    assert {path.name for path in (tmp_path / "staging").rglob("*.xml")} == {"main.xml", "key.xml"}
    assert len(list((tmp_path / "staging").iterdir())) == 1, "nothing of the refused one is written"
    (alone,) = ask({"xml": str(robot), "alone": True})
    assert (alone["problem"], "allow_outside" in alone["warnings"][0]) == (None, True)
