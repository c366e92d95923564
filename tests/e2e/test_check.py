"""``check``: the right verdict for every file, and no file that makes the command crash or hang."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_helpers import (
    PATIENCE_S,
    bow_to_permissions,
    command,
    environment,
    give,
    invoke,
    start,
    wait_until,
    write_experiment,
)

from orchestrator.core.messages import ExaminationRequest
from orchestrator.examination import (
    examination_requests,
    examining_process,
    side_by_side,
)
from orchestrator.examination.robot_check import FIGURES

REPOSITORY = Path(__file__).parents[2]
HOPPER = REPOSITORY / "mjcf" / "hopper.xml"
CART = """<mujoco>{head}<worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" {geom}/><body>
<joint name="pole" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.03"/></body></body></worldbody>
<actuator>{actuator}</actuator>{tail}</mujoco>"""
MOTOR = '<motor joint="x" ctrlrange="-1 1" gear="5"/>'
BALLS = (
    "<worldbody><geom type='plane' size='9 9 "
    f"1'/>{'<body pos=%r><freejoint/><geom size=%r/></body>' * 9}</worldbody>"
)
BALLS %= tuple(value for x in range(9) for value in (f"{x} 3 0.09", "0.1"))


def cart(*, head: str = "", geom: str = "", actuator: str = MOTOR, tail: str = "") -> str:
    """A pole on a cart."""
    return CART.format(head=head, geom=geom, actuator=actuator, tail=tail)


HANGS = cart(head='<option iterations="2000000000" tolerance="0"/>', tail=BALLS)


def no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def check(
    *arguments: str | Path, cwd: Path, before: Callable[[], None] | None = None, code: int
) -> dict[str, dict[str, Any]]:
    """``check --json``: rows by file name.

    :param before: called first in a process of its own for the command.
    """
    arguments = ("check", *arguments, "--json")
    done = give(*arguments, cwd=cwd, before=before) if before else invoke(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout, parse_constant=no_number)
    assert all(set(row) >= {"path", "verdict", "messages", *FIGURES} for row in rows)
    return {Path(row["path"]).name: row for row in rows}


NASTY: dict[str, tuple[str | bytes, str, str]] = {
    "good.xml": (cart(), "ok", ""),
    "mark.xml": (b"\xef\xbb\xbf" + cart().replace("0.5", "0.6").encode(), "ok", ""),
    "ten_megabytes.xml": (cart(head=f"<!--{'long ' * 2_000_000}-->"), "ok", ""),
    "many.xml": (cart(head="<worldbody>" + "<site/>" * 2_000 + "</worldbody>"), "ok", ""),
    "circle.xml": ("<mujoco><include file='round.xml'/></mujoco>", "error", "includes itself"),
    "round.xml": ("<mujoco><include file='circle.xml'/></mujoco>", "error", "includes itself"),
    "no_mesh.xml": (cart(head="<asset><mesh file='no.stl'/></asset>"), "error", "no.stl: no such file"),
    "heavy.xml": (cart(geom='mass="1e9"'), "warning", "implausible mass"),
    "weightless.xml": (cart(geom='mass="0"'), "error", "mass and inertia of moving bodies"),
    "idle.xml": (cart(actuator=""), "error", "has no actuators"),
    "unlimited.xml": (cart(actuator='<motor joint="x"/>'), "warning", "1 actuator has no ctrlrange ('0')"),
    "wild.xml": (cart(actuator=MOTOR.replace('"5"', '"1e12"')), "error", "physics diverges under random actions"),
    "nan_mass.xml": (cart(geom='\nmass="nan"'), "error", "contains NaN"),
    "nan_key.xml": (cart(tail='<keyframe><key qpos="0 nan"/></keyframe>'), "error", "contains NaN"),
    "inf.xml": (cart(actuator=MOTOR.replace('"5"', '"inf"')), "error", "physics diverges"),
    "endless.xml": (cart(geom='mass="inf"'), "error", "physics diverges"),
    "junk.xml": (bytes(range(256)) * 20, "error", "is empty or no text"),
    "noise.xml": (b"\x89\xff<\xfe\x81junk>" * 20, "fragment", "not an MJCF"),
    "empty.xml": (b"", "error", "is empty or no text"),
    "open.xml": (b"<mujoco><worldbody>", "error", "XML parse error"),
    "deep.xml": ("<mujoco>" + "<worldbody>" * 100_000, "error", "XML"),
    "twice.xml": (cart(tail='<worldbody><site name="s"/><site name="s"/></worldbody>'), "error", "repeated name 's'"),
    "wide.xml": (cart().encode("utf-16"), "error", "no text in UTF-8"),
    "shouted.xml": (cart().replace("mujoco", "MuJoCo"), "fragment", "the root element is <MuJoCo>"),
    "hungry.xml": (cart(head='<size memory="900G"/>'), "error", "takes more than the"),
    "starved.xml": (cart(head='<size memory="1K"/>', tail=BALLS), "error", "increase <size memory="),
    "huge.xml": (cart(head='<size nconmax="100000000" njmax="1000000000"/>'), "error", "takes more than the"),
    "package.xml": ("<package><name>x</name></package>", "fragment", "not an MJCF: the root element is <package>"),
    "part.xml": ("<mujocoinclude><site/></mujocoinclude>", "fragment", "a part for other files to include"),
    "limb.xml": (f"<mujoco><actuator>{MOTOR}</actuator></mujoco>", "fragment", "a part of "),
    "whole.xml": (cart(actuator="", tail="<include file='limb.xml'/>"), "ok", ""),
    "scene.xml": ("<mujoco><worldbody><light/></worldbody></mujoco>", "fragment", "nothing in it moves"),
}  # fmt: skip


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Verdicts on a folder with all of them, a pipe, circular links, and unreadable files."""
    folder = tmp_path_factory.mktemp("nasty")
    for name, (content, *_) in NASTY.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    os.mkfifo(folder / "pipe.xml")
    (folder / os.fsdecode(b"\xff.xml")).write_text(cart())
    (folder / "self.xml").symlink_to("self.xml")
    (folder / "nowhere.xml").symlink_to("not_there.xml")
    (folder / "inner" / ".hidden").mkdir(parents=True)
    (folder / "inner" / "back").symlink_to(folder)
    (folder / "inner" / "copy.XML").write_text(cart())
    (folder / "inner" / ".hidden" / "never_seen.xml").write_text("")
    (folder / "run").mkdir()
    (folder / "run" / "ledger.sqlite3").touch()
    (folder / "run" / "copy_for_a_job.xml").write_text(cart())
    (folder / "secret.xml").write_text(cart())
    (folder / "secret.xml").chmod(0)
    (folder / "locked").mkdir(mode=0)
    return check(folder, cwd=folder, before=bow_to_permissions, code=1)


@pytest.mark.parametrize("name", NASTY)
def test_every_file_gets_the_right_verdict(name: str, nasty: dict[str, dict[str, Any]]) -> None:
    row = nasty[name]
    _, verdict, message = NASTY[name]
    assert row["verdict"] == verdict, row["messages"]
    assert message in "".join(row["messages"]) if message else row["messages"] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe.xml", "is not a regular file"),
        ("self.xml", "cannot be read: Too many levels of symbolic links"),
        ("nowhere.xml", "no such file"),
        ("\udcff.xml", "rename the file or folder"),
        ("secret.xml", "cannot be read: Permission denied"),
        ("locked", "cannot be read: Permission denied"),
    ],
)
def test_what_is_no_readable_file_is_an_error(
    name: str, message: str, nasty: dict[str, dict[str, Any]]
) -> None:
    assert nasty[name]["verdict"] == "error"
    (text,) = nasty[name]["messages"]
    assert message in text


@pytest.mark.nightly
def test_a_robot_that_hangs_is_given_up_after_its_time(tmp_path: Path) -> None:
    (tmp_path / "hangs.xml").write_text(HANGS)
    (tmp_path / "temporary").mkdir()
    done = give(
        *("check", "hangs.xml", "--time-limit", "2", "--json"),
        cwd=tmp_path,
        TMPDIR=str(tmp_path / "temporary"),
    )
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)
    assert row["messages"] == ["examining it took more than 2 s; give a larger --time-limit"]
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.nightly
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "hangs.xml").write_text(HANGS)
    (tmp_path / "temporary").mkdir()
    its_own = environment(TMPDIR=str(tmp_path / "temporary"))
    with start(command("check", "hangs.xml"), cwd=tmp_path, env=its_own) as process:
        wait_until(lambda: list(tmp_path.glob("temporary/*/*/hangs.xml")), "the robot is examined")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[1] == "stopped\n"
    assert process.returncode == 130
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.nightly
def test_a_robot_on_which_mujoco_gives_up_does_no_harm_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terrain = "<asset><hfield name='h' nrow='100000' ncol='100000' size='1 1 1 1'/></asset>"
    (tmp_path / "vast.xml").write_text(cart(head=terrain))
    (tmp_path / "good.xml").write_text(cart())
    monkeypatch.setattr(
        examination_requests, "available_memory_mib", lambda: 0
    )  # the least is left to each
    requests = [
        ExaminationRequest(xml=str(tmp_path / name), alone=True, model_edits=edits)
        for edits in ({}, {"option.timestep": 0.004})
        for name in ("vast.xml", "good.xml")
    ]
    answers = side_by_side.ask(requests, processes=1, time_limit_s=30)
    assert [answer.problem for answer in answers[1::2]] == [None, None]
    for answer in answers[::2]:
        assert (
            f"takes more than the {examination_requests.LEAST_MEMORY_MIB:,} MiB available"
            in str(answer.problem)
        )


@pytest.mark.nightly
def test_a_crash_is_attributed_to_the_robot_that_was_examined(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import os\ndef make_env(xml, seed):\n    os.abort()\ndef once(xml, seed):\n    import gymnasium\n"
        f"    if not os.path.exists({str(tmp_path / 'been')!r}):\n"
        f"        open({str(tmp_path / 'been')!r}, 'w').close()\n        os.abort()\n"
        "    return gymnasium.make('Pendulum-v1')\n"
    )
    hopper = ExaminationRequest(xml=str(HOPPER), task="forward")
    once, always = (
        ExaminationRequest(entry_point=f"crash:{name}", search_path=str(tmp_path))
        for name in ("once", "make_env")
    )
    counts: list[tuple[int, int]] = []
    requests = [hopper, once, hopper, always, hopper]
    answers = side_by_side.ask(requests, processes=1, watch=lambda *now: counts.append(now))
    assert [answer.problem for answer in answers[:3]] == [None] * 3
    assert answers[4].problem is None
    assert str(answers[3].problem).startswith("examining it ended with signal 6 (Aborted)")
    assert counts == sorted(counts)
    assert counts[-1] == (5, 5)


def test_no_child_stays_once_all_is_answered() -> None:
    before = psutil.Process().children()
    with examining_process.Child() as warm:
        request = ExaminationRequest(xml=str(HOPPER), task="forward")
        (answer,) = side_by_side.ask([request], processes=1, warm=warm)
        assert answer.problem is None
        assert psutil.Process().children() == before


def test_job_files_are_checked_with_their_tasks(tmp_path: Path) -> None:
    unlimited = tmp_path / "unlimited.xml"
    unlimited.write_text(cart(actuator='<motor joint="x"/>'))
    jobs = write_experiment(
        tmp_path,
        {"name": "good", "xml": HOPPER, "task": "forward", "seeds": [0, 1, 2]},
        {"name": "bad", "xml": HOPPER, "task": "balance"},
        {"name": "chosen", "xml": unlimited, "task": "auto"},
        {"name": "hopper", "task": "gymnasium:Hopper-v5"},
        {"name": "environment", "env": "CartPole-v1"},
    )
    done = invoke("check", jobs, "--json", cwd=tmp_path)
    assert done.returncode == 1
    good, bad, chosen, hopper, environment = json.loads(done.stdout)
    assert (good["verdict"], good["job"], good["where"]) == ("ok", "good-s0", f"{jobs}: jobs[0]")
    assert good["task"] == "forward"
    assert bad["verdict"] == "error"
    assert bad["messages"][0].startswith('task "balance": needs')
    assert (chosen["verdict"], chosen["task"]) == ("warning", "balance")
    assert (hopper["verdict"], hopper["nq"], hopper["task"]) == ("ok", 6, "gymnasium:Hopper-v5")
    assert (environment["verdict"], environment["path"], environment["nq"]) == (
        "ok",
        str(jobs),
        None,
    )


def test_errors_stop_a_run_with_their_place(tmp_path: Path) -> None:
    wild = tmp_path / "wild.xml"
    wild.write_text(cart(actuator=MOTOR.replace('"5"', '"1e12"')))
    jobs = write_experiment(tmp_path, {"name": "wild", "xml": wild, "task": "balance"})
    done = invoke("run", jobs, cwd=tmp_path)
    assert done.returncode == 2
    assert f"jobs.toml: jobs[0]: {wild}: physics diverges under random actions" in done.stderr


def test_people_get_a_table_and_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "good.xml").write_text(cart())
    (tmp_path / "idle.xml").write_text(cart(actuator=""))
    done = invoke("check", ".", "good.xml", cwd=tmp_path)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:4] == ["robot", "verdict", "root", "task"]
    assert lines[1][:4] == ["good.xml", "ok", "slide", "balance"]
    assert lines[2][:3] == ["idle.xml", "error", "slide"]
    assert "\nidle.xml\n    has no actuators, so there is nothing to train" in done.stdout
    assert done.stdout.endswith("2 examined: 1 ok, 1 error\n")


@pytest.mark.nightly
def test_the_robots_of_the_packages_we_build_on_are_judged_sensibly(tmp_path: Path) -> None:
    places = [importlib.util.find_spec(name) for name in ("gymnasium", "mujoco")]
    folders = [
        str(place.submodule_search_locations[0])
        for place in places
        if place and place.submodule_search_locations
    ]
    rows = check(*folders, cwd=tmp_path, code=0)
    assert {"ant.xml", "half_cheetah.xml", "humanoid.xml", "pusher_v5.xml", "model.xml"} <= set(
        rows
    )
    assert {name for name, row in rows.items() if row["verdict"] == "warning"} <= {
        "humanoidstandup.xml",  # its arms start in the ground
        "model.xml",  # made for tests
    }
    assert rows["swimmer.xml"]["task"] == "forward"
    assert rows["pusher_v5.xml"]["task"] == "reach"
