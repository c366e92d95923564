"""Messages name options as the front end spells them that has asked: the command, or Python."""

from __future__ import annotations

import subprocess
import sys
import threading

from orchestrator.core.front_end import is_python, option, override, python_program, repeat_call
from orchestrator.core.processes.child_process import child_environment


def spellings() -> list[str]:
    return [
        option("run_dir"),
        option("max_parallel", 2),
        option("max_parallel", "idle"),
        option("on_change", "keep", sign="="),
        option("fresh", True),
        option("overrides"),
        override("ppo.n_steps"),
        repeat_call(),
    ]


def test_options_are_spelled_as_the_front_end_has_them() -> None:
    of_command = spellings()
    with python_program():
        of_python = spellings()
    assert list(zip(of_command, of_python, strict=True)) == [
        ("--run-dir", "run_dir"),
        ("--max-parallel 2", "max_parallel=2"),
        ("--max-parallel idle", 'max_parallel="idle"'),
        ("--on-change=keep", 'on_change="keep"'),
        ("--fresh", "fresh=True"),
        ("--set", "overrides"),
        ("--set ppo.n_steps", 'overrides["ppo.n_steps"]'),
        ("run the same command again", "make the same call again"),
    ]


def test_all_threads_and_child_processes_of_a_call_speak_python_until_it_ends() -> None:
    heard = []
    with python_program():
        with python_program():
            pass
        thread = threading.Thread(target=lambda: heard.append(is_python()))
        thread.start()
        thread.join()
        environment = child_environment()
    script = "from orchestrator.core.front_end import option; print(option('run_dir'))"
    for given in (environment, child_environment()):
        command = [sys.executable, "-c", script]
        heard.append(subprocess.check_output(command, env=given, text=True).strip())
    assert heard == [True, "run_dir", "--run-dir"]
    assert not is_python()
