"""Job files: what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import EXAMPLE, HOPPER, resolve

from orchestrator.core.errors import UsageError
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.jobfile import from_mapping, load, parse_override
from orchestrator.jobfile.job_names import matrix_suffix
from orchestrator.jobfile.robot_globs import matching_files
from orchestrator.keys.value_types import parse_duration, parse_size


def test_the_example_of_the_documentation_becomes_its_jobs(write: Callable[..., Path]) -> None:
    path = write(EXAMPLE)
    experiment = load(path)
    assert (experiment.name, experiment.max_parallel, experiment.order) == (
        "robots",
        None,
        "longest-first",
    )
    assert experiment.base == path.parent
    assert [job.job_id for job in experiment.jobs] == ["hopper-s0"] + [
        f"{robot}-lr{rate}-s{seed}"
        for robot in ("ant", "bug")
        for rate in ("1e-4", "3e-4")
        for seed in (0, 1, 2)
    ]
    hopper, ant = experiment.jobs[:2]
    assert hopper.xml_source == path.parent.parent / "mjcf" / "hopper.xml"
    assert (hopper.where, ant.where) == ("jobs[0]", "jobs[1]")
    assert hopper.resources.memory_mib == 2048
    assert (hopper.resources.timeout_s, hopper.resources.stall_timeout_s, hopper.max_retries) == (
        7200.0,
        600.0,
        2,
    )
    assert hopper.spec == WorkerSpec(
        job_id="hopper-s0",
        name="hopper",
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=200_000,
        n_envs=8,
        normalize=True,
        checkpoint_every=50_000,
        eval_episodes=10,
        xml="robot/hopper.xml",
        task="forward",
        hyperparameters={"n_steps": 256},
        policy_kwargs={"net_arch": [64, 64]},
        threads=1,
        search_path=None,
        preview=True,
    )
    assert ant.spec.hyperparameters == {"n_steps": 256, "learning_rate": 1e-4}
    assert all(WorkerSpec.from_json(job.spec.to_json()) == job.spec for job in experiment.jobs)


def test_a_job_of_name_and_robot_alone_has_every_default(place: Path) -> None:
    (job,) = resolve(place, HOPPER).jobs
    assert job.spec.task == "auto"
    assert job.spec.hyperparameters == {}, "only what the user wrote is passed on"
    assert (job.resources.cores, job.resources.threads, job.resources.gpus) == (1, 1, 0)
    assert (job.resources.memory_mib, job.resources.timeout_s, job.resources.stall_timeout_s) == (
        2048,
        7200,
        600,
    )
    assert (job.resources.log_mib, job.resources.nice, job.resources.min_free_disk_mib) == (
        64,
        0,
        1024,
    )
    assert job.max_retries == 2


@pytest.mark.parametrize(
    "task", ["auto", "reach", "gymnasium:Ant-v5", "my_tasks:Jump", "lab.tasks:Track", "my:Track"]
)
def test_a_task_is_built_in_or_gymnasiums_or_the_users_own(place: Path, task: str) -> None:
    (job,) = resolve(place, HOPPER | {"task": task}).jobs
    assert job.spec.task == task
    assert (job.spec.search_path is not None) == (task.endswith((":Jump", ":Track")))


def test_job_tables_are_merged_over_defaults_key_by_key(place: Path) -> None:
    defaults = {"ppo": {"n_steps": 256, "gamma": 0.9}, "resources": {"cores": 2, "memory": "1 GiB"}}
    (job,) = resolve(
        place, HOPPER | {"ppo": {"gamma": 1}, "resources": {"memory": "512 MiB"}}, defaults=defaults
    ).jobs
    assert job.spec.hyperparameters == {"n_steps": 256, "gamma": 1.0}
    assert (job.resources.cores, job.resources.threads, job.resources.memory_mib) == (2, 2, 512)
    assert (job.spec.cores, job.spec.threads) == (2, 2), "the worker is told"


def test_set_wins_over_defaults_and_jobs(place: Path) -> None:
    own = HOPPER | {"name": "own", "total_timesteps": 5, "ppo": {"n_steps": 64}}
    experiment = resolve(
        place,
        HOPPER,
        own,
        defaults={"total_timesteps": 7},
        **{"total_timesteps": 6, "ppo.n_steps": 128},
    )
    assert [job.spec.total_timesteps for job in experiment.jobs] == [6, 6]
    assert [job.spec.hyperparameters["n_steps"] for job in experiment.jobs] == [128, 128]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("total_timesteps=100_000", ("total_timesteps", 100_000)),
        ("resources.memory=2 GiB", ("resources.memory", "2 GiB")),
        ("ppo.learning_rate=linear(3e-4, 0)", ("ppo.learning_rate", "linear(3e-4, 0)")),
        ("policy_kwargs.net_arch=[64, 64]", ("policy_kwargs.net_arch", [64, 64])),
        ("env=a=b", ("env", "a=b")),
    ],
)
def test_set_reads_values_as_toml_and_else_as_text(text: str, expected: tuple[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["total_timesteps", "=3", ""])
def test_set_without_key_or_value_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(UsageError):
        parse_override(text)


def test_only_environments_of_the_users_own_are_looked_for_beside_the_job_file(place: Path) -> None:
    task, env = resolve(place, HOPPER, {"name": "ant", "env": "my_envs:Ant-v9"}).jobs
    assert (task.spec.search_path, env.spec.search_path) == (None, str(place))


def test_env_and_entry_point_replace_the_default_task(place: Path) -> None:
    experiment = resolve(
        place,
        {"env": "Ant-v5", "env_kwargs": {"frame_skip": 5}},
        {"name": "mine", "entry_point": "mine.envs:make_env", "xml": "../mjcf/hopper.xml"},
        HOPPER,
        defaults={"task": "balance", "task_options": {"height": 1.0}},
    )
    ant, mine, hopper = (job.spec for job in experiment.jobs)
    assert (ant.name, ant.task, ant.env, ant.xml, ant.env_kwargs) == (
        "Ant-v5",
        None,
        "Ant-v5",
        None,
        {"frame_skip": 5},
    )
    assert (mine.name, mine.task, mine.entry_point, mine.xml) == (
        "mine",
        None,
        "mine.envs:make_env",
        "robot/hopper.xml",
    )
    assert (hopper.task, hopper.env_kwargs, hopper.task_options) == ("balance", {}, {"height": 1.0})
    assert ant.task_options == {}
    assert experiment.jobs[0].xml_source is None


def test_a_job_on_a_gpu_trains_on_cuda(place: Path) -> None:
    (job,) = resolve(place, HOPPER | {"resources": {"gpus": 1}}).jobs
    assert (job.spec.device, job.resources.gpus) == ("cuda", 1)


@pytest.mark.parametrize(
    ("written", "counted"),
    [(0.5, 0.5), (0.29, 0.29), (1 / 3, 0.3333), (1 / 6, 0.1666), (0.99999, 0.9999)],
)
def test_a_share_of_a_gpu_is_rounded_down_to_what_is_counted(
    place: Path, written: float, counted: float
) -> None:
    (job,) = resolve(place, HOPPER | {"resources": {"gpus": written}}).jobs
    assert (job.spec.device, job.resources.gpus, job.resources.all_gpus) == (
        "cuda",
        counted,
        counted,
    )


def test_a_glob_names_its_jobs_by_stem_and_by_folder_where_stems_are_equal(place: Path) -> None:
    experiment = resolve(
        place, {"name": "zoo", "xml": "../mjcf/zoo/*.xml"}, {"xml": "../mjcf/menagerie/*/scene.xml"}
    )
    assert [job.spec.name for job in experiment.jobs] == ["ant", "bug", "go1/scene", "spot/scene"]
    assert [job.job_id for job in experiment.jobs][:2] == ["ant-s0", "bug-s0"]
    assert [job.spec.xml for job in experiment.jobs][2:] == ["robot/scene.xml"] * 2


def test_patterns_over_all_folders_enter_no_links_and_nothing_hidden(tmp_path: Path) -> None:
    for path in ("below/a.xml", "below/sub/b.xml", "below/.hidden/h.xml", "other/c.xml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "below/back").symlink_to("..")
    (tmp_path / "link").symlink_to("other")
    below = [tmp_path / "below" / name for name in ("a.xml", "sub/b.xml")]
    assert matching_files("below/**/*.xml", tmp_path)[1] == below
    assert matching_files("**/*.xml", tmp_path)[1] == [*below, tmp_path / "other/c.xml"]
    assert matching_files("link/**/*.xml", tmp_path)[1] == [tmp_path / "link/c.xml"]
    assert matching_files("a**b/*.xml", tmp_path)[1] == []


def test_a_matrix_is_the_product_of_its_lists(place: Path) -> None:
    matrix = {
        "ppo.n_steps": [128, 256],
        "policy_kwargs.net_arch": [[32], [64, 64]],
        "task": ["balance"],
    }
    jobs = resolve(place, HOPPER | {"matrix": matrix, "ppo": {"gamma": 0.9}}).jobs
    assert [job.job_id for job in jobs] == [
        "hopper-n_steps128-net_arch32-task_balance-s0",
        "hopper-n_steps128-net_arch64x64-task_balance-s0",
        "hopper-n_steps256-net_arch32-task_balance-s0",
        "hopper-n_steps256-net_arch64x64-task_balance-s0",
    ]
    assert jobs[3].spec.hyperparameters == {"gamma": 0.9, "n_steps": 256}
    assert jobs[3].spec.policy_kwargs == {"net_arch": [64, 64]}
    assert {job.spec.task for job in jobs} == {"balance"}


@pytest.mark.parametrize(
    ("point", "suffix"),
    [
        ({}, ""),
        ({"ppo.learning_rate": 1e-4}, "-lr1e-4"),
        ({"ppo.gamma": 0.99, "n_envs": 4}, "-gamma0.99-n_envs4"),
        (
            {"policy_kwargs.log_std_init": -2.0, "normalize": False},
            "-log_std_init-2.0-normalize_false",
        ),
        (
            {"model.geom.thigh.size": "*1.2", "model.actuator.*.gear": [60, 1]},
            "-thigh.size1.2x-gear60x1",
        ),
    ],
)
def test_a_matrix_point_has_a_short_readable_mark(point: dict[str, Any], suffix: str) -> None:
    assert matrix_suffix(point) == suffix


def test_changes_to_the_robot_are_one_flat_table_however_they_were_written(place: Path) -> None:
    written = {
        "defaults": {
            "model": {"option.timestep": 0.004, "geom": {"thigh": {"size": 0.1, "density": 5}}}
        },
        "jobs": [
            {
                "name": "a",
                "xml": "../mjcf/hopper.xml",
                "model": {"geom.thigh.size": "*2"},
                "matrix": {},
            }
        ],
    }
    written["jobs"][0]["matrix"] = {"model.geom.thigh.density": [6, "*2"]}
    found = from_mapping(
        {"name": "e", **written},
        source="e.toml",
        base=place,
        overrides={"model.option.timestep": 0.008},
    )
    assert [dict(job.spec.model_edits) for job in found.jobs] == [
        {"option.timestep": 0.008, "geom.thigh.size": "*2", "geom.thigh.density": density}
        for density in (6, "*2")
    ]
    assert [dict(job.point) for job in found.jobs] == [
        {"model.geom.thigh.density": 6},
        {"model.geom.thigh.density": "*2"},
    ]
    assert len({job.spec.fingerprint() for job in found.jobs}) == 2


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("2 GiB", 2048),
        ("1.5GB", 1431),
        (" 1 TiB ", 2**20),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, mebibytes: int) -> None:
    assert parse_size(text) == mebibytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("10min", 600),
        ("90s", 90),
        ("1h 30 min", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
    ],
)
def test_durations_are_read_in_every_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_number_is_a_duration_in_seconds(place: Path) -> None:
    (job,) = resolve(
        place, HOPPER | {"resources": {"timeout": 1.5, "stall_timeout": 3, "log": "16 MiB"}}
    ).jobs
    assert (job.resources.timeout_s, job.resources.stall_timeout_s, job.resources.log_mib) == (
        1.5,
        3.0,
        16,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"resources": {"cores": 2, "threads": 1}}, None),
        ({"resources": {"cores": 2}}, "threads"),
        ({"resources": {"gpus": 1}}, "GPU"),
        ({"resources": {"ranks": 2}}, "ranks"),
    ],
)
def test_a_job_asked_to_be_forked_says_why_it_must_be_execed(
    place: Path, changes: dict[str, Any], reason: str | None
) -> None:
    (job,) = resolve(place, HOPPER | changes, defaults={"resources": {"start": "fork"}}).jobs
    assert job.resources.start == "fork"
    assert (
        (job.why_exec is None)
        if reason is None
        else (job.why_exec is not None and reason in job.why_exec)
    )
    assert job.resources.for_measurement().start == "exec"
    assert resolve(place, HOPPER).jobs[0].resources.start == "auto"


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [("0-3", [0, 1, 2, 3]), (" 7 - 7 ", [7]), ("4294967295-4294967295", [2**32 - 1])],
)
def test_a_range_of_seeds_is_their_list(place: Path, seeds: str, expected: list[int]) -> None:
    jobs = resolve(place, HOPPER | {"seeds": seeds}).jobs
    assert [job.spec.seed for job in jobs] == expected


@pytest.mark.nightly
def test_ten_thousand_jobs_are_distinguished(place: Path) -> None:
    experiment = resolve(
        place,
        *(HOPPER | {"name": f"j{number}"} for number in range(5000)),
        defaults={"seeds": [0, 1]},
    )
    assert len({job.job_id for job in experiment.jobs}) == 10_000
