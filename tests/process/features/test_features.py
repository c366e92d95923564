"""Features: the program's own, those of others, and those that cannot be used."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from command_helpers import DOCTOR

import orchestrator as orchestrator_package
from orchestrator import cli
from orchestrator.core import feature
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.executors import kinds
from orchestrator.keys import feature_tables
from orchestrator.keys.value_types import key
from orchestrator.ledger import Ledger

REPOSITORY = Path(__file__).parents[3]


def first_of(names: Mapping[str, str]) -> str | None:
    """The first of these things of features, by feature, whose feature is there: some may have been
    taken away."""
    for feature_name, thing in names.items():
        if importlib.util.find_spec(f"orchestrator.features.{feature_name}") is not None:
            return thing
    return None


GROUP = first_of({"ray": "cluster"})
"""A group of commands of a feature."""
TABLE = first_of({"search": "search", "tracking": "track", "notifications": "notify"})
"""A table of the job file of a feature."""
PACKAGE = """
import typer
from orchestrator.core.feature import Feature

app = typer.Typer()


@app.command("{command}")
def greet() -> None:
    \"\"\"Greet whoever is there.\"\"\"
    print("hello")


FEATURE = Feature(name="{name}", about="It greets.", commands=lambda: app, api={api})
"""


def install(folder: Path, code: str, entry: str = "", name: str = "greeting") -> None:
    """As pip does it: a package, and its entry points beside it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_package.py").write_text(code)
    facts = folder / f"{name}_package-1.0.dist-info"
    facts.mkdir()
    entries = entry or f"{name} = {name}_package"
    (facts / "entry_points.txt").write_text(
        f"[console_scripts]\nother = other\n\n[orchestrator.features]\n{entries}\n"
    )


def package(name: str = "greeting", command: str = "greet", api: int = feature.API) -> str:
    return PACKAGE.format(name=name, command=command, api=api)


def search_path(folder: Path) -> str:
    """Of a process: ``folder``, and the program under test, whatever else is installed."""
    return os.pathsep.join([str(folder), str(REPOSITORY)])


def orchestrator(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": search_path(folder), "XDG_STATE_HOME": str(folder / "state")}
    chosen = {"ORCHESTRATOR_FEATURES": "greeting"} | variables
    environment = {**os.environ, **own, **chosen}
    program = ["-c", DOCTOR] if arguments == ("doctor",) else ["-m", "orchestrator"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_package_adds_a_command(tmp_path: Path) -> None:
    install(tmp_path, package())
    assert (done := orchestrator(tmp_path, "greet")).stdout == "hello\n", done.stderr
    assert "Greet whoever is there." in orchestrator(tmp_path, "--help").stdout


def test_installed_features_are_chosen_by_a_variable_and_traced_by_another(tmp_path: Path) -> None:
    install(tmp_path, package())
    other = orchestrator(tmp_path, "greet", ORCHESTRATOR_FEATURES="other")
    assert other.returncode == 2
    assert other.stderr.startswith("warning: the feature other is not installed, and ORCHESTR")
    done = orchestrator(
        tmp_path,
        "greet",
        ORCHESTRATOR_FEATURES="other, greeting",
        ORCHESTRATOR_TRACE_FEATURES="1",
    )
    assert done.stdout == "hello\n"
    assert "features: greeting is asked for commands" in done.stderr.splitlines()


WARNING = "warning: the feature "
BROKEN = {
    "import": ("import no_such_module", "cannot be loaded: ModuleNotFoundError"),
    "exit": ("raise SystemExit('needs more')", "cannot be loaded: SystemExit: needs more"),
    "kind": ("FEATURE = 3", "cannot be loaded: its FEATURE is no orchestrator.core.feature.Fea"),
    "nothing": ("", "cannot be loaded: AttributeError"),
    "lines": ("raise ValueError('a\\n\\x1b[31mb')", "cannot be loaded: ValueError: a "),
    "version": (package(api=feature.API + 1), f"and this program has {feature.API}"),
    "name": (package(name="another"), "the name another; expected that of its entry point"),
    "call": (package().replace("lambda: app", "lambda: 1 / 0"), "no commands: ZeroDivisionError"),
    "command": (package(command="run"), "adds no commands: there is run already"),
    "case": (package().replace('"greet"', "").replace("greet(", "Status("), "there is status alr"),
    "groups": (
        package()
        .replace(
            "\n\nFEATURE", "\nother = typer.Typer()\nother.add_typer(app, name='run')\nFEATURE"
        )
        .replace("lambda: app", "lambda: other"),
        "adds no commands: there is run already",
    ),
    "argument": (package().replace("greet()", "greet(x: 'Nope')"), "adds no commands: NameError"),
}
if GROUP is not None:
    BROKEN["group"] = package(command=GROUP), f"adds no commands: there is {GROUP} already"


def test_features_that_cannot_be_used_are_named_and_nothing_else_is_broken(tmp_path: Path) -> None:
    for what, (code, _) in BROKEN.items():
        mine = code.replace('name="greeting"', f'name="{what}"')
        install(tmp_path, f"print('welcome')\n{mine}", name=what)
    done = orchestrator(tmp_path, "list", ORCHESTRATOR_FEATURES=", ".join(BROKEN))
    assert (done.returncode, done.stdout) == (0, "no experiment was started here\n")
    lines = done.stderr.splitlines()
    assert lines.count("welcome") == len(BROKEN)
    assert [line for line in lines if line != "welcome" and not line.startswith(WARNING)] == []
    warnings = warnings_by_feature(lines)
    assert warnings.keys() == BROKEN.keys()
    for what, (_, why) in BROKEN.items():
        (warning,) = warnings[what]
        assert why in warning
        assert "\x1b" not in warning


def warnings_by_feature(lines: Iterable[str]) -> dict[str, list[str]]:
    """The warnings about each feature, by its name."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(WARNING):
            found.setdefault(line.removeprefix(WARNING).split()[0], []).append(line)
    return found


@pytest.mark.nightly
def test_no_two_features_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = feature.features()[0].name
    install(tmp_path, package(name=own), entry=f"{own} = greeting_package")
    done = orchestrator(tmp_path, "list", ORCHESTRATOR_FEATURES=own)
    assert done.stdout == "no experiment was started here\n"
    assert f"the feature {own} (greeting_package) cannot be loaded: there is a f" in done.stderr


@pytest.mark.nightly
def test_the_help_of_a_command_is_its_own_or_its_docstring(tmp_path: Path) -> None:
    install(tmp_path, package().replace('command("greet")', 'command("greet", help="Own text.")'))
    assert "Own text." in orchestrator(tmp_path, "--help").stdout


def test_entry_points_are_read_as_others_write_them(tmp_path: Path) -> None:
    install(tmp_path, package(), entry="# mine\ngreeting = greeting_package : FEATURE")
    found = list(feature._in_group(tmp_path / "greeting_package-1.0.dist-info/entry_points.txt"))
    assert found == [("greeting", "greeting_package")]
    assert orchestrator(tmp_path, "greet").stdout == "hello\n"


def is_there(path: str) -> bool:
    """Whether there is such a path, or the folder of tests of a feature in which it was is gone."""
    folder = REPOSITORY.joinpath(*Path(path).parts[:3])
    is_in_tests = path.startswith("tests/features/") and Path(path).parts[3:] != ()
    return (REPOSITORY / path).exists() or (is_in_tests and not folder.exists())


def test_what_belongs_to_a_feature_is_there_and_says_what_it_is_for() -> None:
    assert feature.problems() == ()
    for one in feature.features():
        assert one.about.endswith(".")
        # Some lie in the folder of another feature, which may have been taken away.
        assert [path for path in one.belongings if not is_there(path)] == []


PARTS = """
import dataclasses

from orchestrator.core.feature import Feature
from orchestrator.core.job_parts import JobPart
from orchestrator.executors.kinds import ExecutorKind, ExecutorOption
from orchestrator.keys.feature_tables import FeatureTable, JobTable
from orchestrator.keys.value_types import TomlTable


class Required(TomlTable):
    x: int


@dataclasses.dataclass(frozen=True)
class Mine:
    of_mine: int = 0


@dataclasses.dataclass(frozen=True)
class Other:
    of_other: int = 0


@dataclasses.dataclass(frozen=True)
class Seed:
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Wall:
    wall_s: float = 0.0


def parts(name, settings=Mine, facts=None):
    return [JobPart(name=name, settings=settings, facts=facts, loop="nowhere")]


class Numbered(TomlTable):
    x: int = 0


def job_table(name, model=Numbered, rules=None):
    return [JobTable(name=name, about="x", model=model, rules=rules)]


def kind(name, *options):
    made = [ExecutorOption(name=one, metavar="X", help="x.", default="y") for one in options]
    return ExecutorKind(name=name, open=None, options=tuple(made))


def table(name, model=TomlTable):
    return FeatureTable(name=name, about="x", model=model, read=lambda values, problems: values)


def doctor(machine):
    raise ValueError("not this machine")


FEATURE = Feature(name="{name}", about="It greets.", {part})
"""
TAKEN = {
    "executor": ("executors=lambda: [kind('local')]", "no executor local: there is one already"),
    "option": (
        "executors=lambda: [kind('other', 'x'), kind('mine', 'x')]",
        "no executor mine: there is an option or argument x already",
    ),
    "argument": (
        "executors=lambda: [kind('mine', 'fresh')]",
        "no executor mine: there is an option or argument fresh already",
    ),
    "flag": ("executors=lambda: [kind('mine', 'a-b')]", "'a-b' is no name of an option"),
    "keyword": ("executors=lambda: [kind('mine', 'class')]", "'class' is no name of an option"),
    "no_executor": ("executors=lambda: [3]", "adds no executor: AttributeError"),
    "late": ("executors=lambda: (1 / 0 for _ in '1')", "adds no executors: ZeroDivisionError"),
    "table": (
        "job_file=lambda: [table('a'), table('a')]",
        "adds no table [a]: there is such a key",
    ),
    "model": ("job_file=lambda: [table('mine', int)]", "[mine]: its model is no TomlTable"),
    "name": ("job_file=lambda: [table('_mine')]", "adds no table [_mine]: this is no name"),
    "attribute": ("job_file=lambda: [table('json')]", "adds no table [json]: this is no name"),
    "job_key": ("job_file=lambda: [table('ppo')]", "adds no table [ppo]: there is such a key"),
    "required": ("job_file=lambda: [table('mine', Required)]", "its key x has no default"),
    "no_part": (
        "job_tables=lambda: job_table('mine')",
        "adds no table mine of jobs: its feature has no part of jobs with this name",
    ),
    "job_table": (
        "job_parts=lambda: parts('retry'), job_tables=lambda: job_table('retry')",
        "adds no table retry of jobs: there is such a key already",
    ),
    "field": (
        "job_parts=lambda: parts('mine', Seed), job_tables=lambda: job_table('mine')",
        "adds no part of jobs mine: the program itself has a field seed",
    ),
    "field_of_records": (
        "job_parts=lambda: parts('mine', facts=Wall), job_tables=lambda: job_table('mine')",
        "adds no part of jobs mine: the program itself has a field wall_s",
    ),
    "python": (
        "python=lambda: {'run': 'mine'}, doctor=lambda _: dir(__import__('orchestrator')) and []",
        "adds no orchestrator.run: there is one already",
    ),
    "submodule": (
        "python=lambda: {'cli': 'mine'}, doctor=lambda _: dir(__import__('orchestrator')) and []",
        "adds no orchestrator.cli: there is one already",
    ),
    "private": (
        "python=lambda: {'_x': 'mine'}, doctor=lambda _: dir(__import__('orchestrator')) and []",
        "adds no orchestrator._x: this is no public name",
    ),
    "no_name": (
        "python=lambda: {3: 'mine'}, doctor=lambda _: dir(__import__('orchestrator')) and []",
        "adds no names to the Python interface: AttributeError",
    ),
    "finding": ("doctor=lambda machine: [3]", "has no findings: TypeError"),
    "doctor": ("doctor=doctor", "adds no doctor: ValueError: not this machine"),
}
if TABLE is not None:
    TAKEN["key"] = (
        f"job_file=lambda: [table({TABLE!r})]",
        f"adds no table [{TABLE}]: there is such a key",
    )


@pytest.mark.parametrize("command", ["schema", "doctor"])
def test_parts_that_cannot_be_used_are_named_and_left_out(command: str, tmp_path: Path) -> None:
    taken = {
        what: one for what, one in TAKEN.items() if ("doctor" in one[0]) == (command == "doctor")
    }
    for what, (part, _) in taken.items():
        install(tmp_path, parts(part, what), name=what)
    done = orchestrator(tmp_path, command, ORCHESTRATOR_FEATURES=", ".join(taken))
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith(WARNING) for line in lines)
    warnings = warnings_by_feature(lines)
    assert warnings.keys() == taken.keys()
    for what, (_, why) in taken.items():
        first, *others = warnings[what]
        assert why in first
        assert len(others) == ("no part of jobs mine" in why), (
            "a table without its part is left out, too"
        )


def parts(part: str, name: str = "greeting") -> str:
    """A feature with this part."""
    return PARTS.replace("{part}", part).replace("{name}", name)


@pytest.mark.nightly
def test_an_executor_that_there_is_not_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    install(tmp_path, parts("executors=lambda: [3]"))
    (tmp_path / "jobs.toml").write_text('name = "t"\n[[jobs]]\nenv = "Pendulum-v1"\nname = "p"\n')
    done = orchestrator(tmp_path, "run", "jobs.toml", "--executor", "mine", "--dry-run")
    assert done.returncode == 2
    assert "--executor mine: unknown; valid: local" in done.stderr
    assert "; the feature greeting adds no executor: AttributeError" in done.stderr


def test_no_option_of_an_executor_has_the_name_of_what_a_run_has_itself() -> None:
    command = typer.main.get_group(cli.app).commands["run"]
    flags = {flag for one in command.params for flag in one.opts if flag.startswith("--")}
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    own = names - kinds.executor_options().keys()
    for function in (orchestrator_package.run, orchestrator_package.train):
        own |= inspect.signature(function).parameters.keys()
    assert own - {"options_of_executor"} <= kinds.TAKEN


def test_names_of_the_python_interface_are_loaded_when_they_are_first_used(tmp_path: Path) -> None:
    install(tmp_path, parts("python=lambda: {'Bell': 'bells', 'run': 'bells'}"))
    (tmp_path / "bells.py").write_text("print('loaded')\nBell = 3\n")
    program = """
import orchestrator
assert "Bell" in dir(orchestrator)
assert "Bell" in orchestrator.__all__
print(orchestrator.run.__module__, hasattr(orchestrator, "Horn"))
print(orchestrator.Bell)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": search_path(tmp_path),
            "ORCHESTRATOR_FEATURES": "greeting",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["orchestrator.api", "False", "loaded", "3"], done.stderr


def test_a_name_whose_module_cannot_be_imported_is_blamed_on_its_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"Bell": "needs_a_tower", "Chime": "empty_bells"}
    broken = feature.Feature(name="bells", about="b.", python=lambda: names)
    (tmp_path / "needs_a_tower.py").write_text("import no_such_tower\n")
    (tmp_path / "empty_bells.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(feature, "features", lambda: (broken,))
    of_features = functools.cache(orchestrator_package._of_features.__wrapped__)
    monkeypatch.setattr(orchestrator_package, "_of_features", of_features)
    missing = r"the feature bells cannot load Bell of needs_a_tower: .*'no_such_tower'"
    with pytest.raises(ImportError, match=missing):
        exec("from orchestrator import *", {})
    with pytest.raises(ImportError, match=r"the feature bells cannot load Chime of empty_bells"):
        hasattr(orchestrator_package, "Chime")


def test_policies_are_read_by_the_feature_that_reads_files_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.worker.training import trained_policy

    readers = feature.Feature(
        name="r", about="r.", policy_readers=lambda: {".gait": "gait_files", ".walk": "gait_files"}
    )
    (tmp_path / "gait_files.py").write_text("def read(path):\n    return path.name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(feature, "features", lambda: (readers,))
    assert str(trained_policy.read_policy(Path("a/b.gait"))) == "b.gait"
    with pytest.raises(trained_policy.PolicyError, match=r"b.h: expected .* in .gait or .walk"):
        trained_policy.read_policy(Path("b.h"))
    (tmp_path / "gait_files.py").unlink()
    monkeypatch.delitem(sys.modules, "gait_files")
    with pytest.raises(trained_policy.PolicyError, match=r"b.gait: the feature r cannot load read"):
        trained_policy.read_policy(Path("b.gait"))
    monkeypatch.setattr(feature, "features", tuple)
    with pytest.raises(trained_policy.PolicyError, match=r"b.gait: no installed feature reads"):
        trained_policy.read_policy(Path("b.gait"))


def test_all_robots_are_played_by_the_feature_that_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.commands import control_commands
    from orchestrator.experiment.processes.policy_process import PlayRequest

    def shown(
        run_dir: Path, request: PlayRequest, as_gif: bool, report: Callable[[str], object]
    ) -> list[Path]:
        report(f"{run_dir.name} {request.seconds} {as_gif}")
        return [run_dir / "all.mp4"]

    gallery = feature.Feature(name="gallery", about="x.", play_all=shown)
    monkeypatch.setattr(control_commands, "features", lambda: (gallery,))
    request = PlayRequest(seconds=3.0)
    written = control_commands._play_all(tmp_path, request, as_gif=True)
    assert written == [tmp_path / "all.mp4"]
    assert capsys.readouterr().err == f"{tmp_path.name} 3.0 True\n"
    circus = feature.Feature(name="circus", about="x.", play_all=shown)
    monkeypatch.setattr(control_commands, "features", lambda: (gallery, circus))
    monkeypatch.setattr(feature, "_problems", {})
    assert control_commands._play_all(tmp_path, request, as_gif=True) == written
    (problem,) = feature._problems.values()
    assert "the feature circus shows no robots together: gallery does" in problem
    monkeypatch.setattr(control_commands, "features", tuple)
    with pytest.raises(UsageError, match="no installed feature shows all robots together"):
        control_commands._play_all(tmp_path, request, as_gif=True)


@pytest.mark.parametrize("fails", [lambda *_: 1 / 0, lambda *_: None, lambda *_: [3]])
def test_a_feature_that_cannot_show_all_robots_is_named(
    fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.commands import control_commands
    from orchestrator.experiment.processes.policy_process import PlayRequest

    gallery = feature.Feature(name="gallery", about="x.", play_all=fails)
    monkeypatch.setattr(control_commands, "features", lambda: (gallery,))
    monkeypatch.setattr(feature, "_problems", {})
    with pytest.raises(UsageError, match="play: the feature gallery cannot show all robots"):
        control_commands._play_all(tmp_path, PlayRequest(), as_gif=False)
    (problem,) = feature._problems.values()
    assert "the feature gallery cannot show all robots together: " in problem


@pytest.mark.parametrize(
    ("name", "taken", "why"),
    [
        ("video", ("video",), "key video of jobs: there is such a key already"),
        ("seed", (), "key seed of jobs: expected a fact of specs: video or preview"),
    ],
)
def test_a_key_of_jobs_that_cannot_be_one_is_left_out(
    name: str, taken: Sequence[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = feature_tables.JobKey(name=name, field=(bool, key(False, "x.")))
    gallery = feature.Feature(name="gallery", about="x.", job_keys=lambda: [added])
    monkeypatch.setattr(feature, "features", lambda: (gallery,))
    monkeypatch.setattr(feature, "_problems", {})
    assert feature_tables.job_keys(taken) == {}
    (problem,) = feature.problems()
    assert why in problem


UNREADABLE = {
    "no_rules": (
        "job_parts=lambda: parts('no_rules'),"
        "job_tables=lambda: job_table('no_rules', rules=lambda: 1 / 0)",
        "has no rules of the table no_rules of jobs: ZeroDivisionError",
    ),
    "no_settings": (
        "job_parts=lambda: parts('no_settings', Other),"
        "job_tables=lambda: job_table('no_settings', rules=lambda: "
        "__import__('orchestrator.jobfile.job_table_rules').jobfile.job_table_rules."
        "JobTableRules(settings=lambda merged: 1 / 0))",
        "cannot read an empty table no_settings of jobs: ZeroDivisionError",
    ),
    "no_table": (
        "job_file=lambda: [FeatureTable("
        "name='no_table', about='x', model=TomlTable, read=lambda *_: 1 / 0)]",
        "cannot read an empty table [no_table]: ZeroDivisionError",
    ),
}
"""Tables, with their feature and what is said of it."""


@pytest.mark.nightly
def test_tables_that_their_features_cannot_read_harm_no_job_file_without_them(
    tmp_path: Path,
) -> None:
    for name, (part, _) in UNREADABLE.items():
        install(tmp_path, parts(part, name), name=name)
    jobs = 'name = "t"\n[[jobs]]\nenv = "Pendulum-v1"\nname = "p"\n'

    def dry_run(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "jobs.toml").write_text(text)
        chosen = ", ".join(UNREADABLE)
        dry_run = ("run", "jobs.toml", "--dry-run")
        return orchestrator(tmp_path, *dry_run, ORCHESTRATOR_FEATURES=chosen)

    done = dry_run(jobs)
    assert done.returncode == 0, done.stderr
    for name, (_, why) in UNREADABLE.items():
        assert f"the feature {name} {why}" in done.stderr
    with_those_of_jobs = dry_run(f"{jobs}no_rules = {{ x = 5 }}\nno_settings = {{ x = 5 }}\n")
    assert with_those_of_jobs.returncode == 2
    for name in ("no_rules", "no_settings"):
        assert f"jobs[0].{name}: the feature of this table" in with_those_of_jobs.stderr
    with_an_empty_one = dry_run(f"{jobs}[no_table]\n")
    assert with_an_empty_one.returncode == 0, "an empty table is as good as none"


LEFT = """
class Jobs:
    def __getattr__(self, name):
        raise ValueError("no cluster here")


FEATURE = Feature(
    name="greeting",
    about="It greets.",
    executors=lambda: [ExecutorKind(name="mine", open=None, batch_jobs=Jobs())],
)
"""


@pytest.mark.nightly
def test_an_executor_that_cannot_say_what_it_left_harms_no_run_of_others(tmp_path: Path) -> None:
    install(tmp_path, PARTS.partition("FEATURE")[0] + LEFT)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    Ledger.create(RunPaths(run_dir).ledger).close()
    (run_dir / "supervisor.lock").touch()
    for command, code in (("status", 0), ("stop", 0), ("clean", 0)):
        done = orchestrator(tmp_path, command, "run")
        assert done.returncode == code, done.stderr
        assert "the feature greeting cannot say what its executor mine has left" in done.stderr
    (run_dir / "provenance.json").write_text('[{"executor": "mine"}]')
    refused = orchestrator(tmp_path, "clean", "run")
    assert refused.returncode == 2
    assert "may still train (mine cannot be asked: ValueError('no cluster here'))" in refused.stderr
    stopped = orchestrator(tmp_path, "stop", "run")
    assert stopped.returncode == 2
    assert "batch jobs of --executor mine could not be ended (ValueError: no clu" in stopped.stderr


def test_what_code_of_a_feature_prints_goes_to_standard_error_in_the_main_thread_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def print_within() -> None:
        with feature.problems_of("greeting", "adds nothing"):
            print("from a feature")

    print_within()
    assert capsys.readouterr() == ("", "from a feature\n")
    other = threading.Thread(target=print_within)
    other.start()
    other.join()
    assert capsys.readouterr() == ("from a feature\n", "")
