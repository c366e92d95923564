"""What ``run --detach`` shows when the first jobs run."""

from __future__ import annotations

import shlex

from orchestrator.client.run import Underway
from orchestrator.core.text import count, plain
from orchestrator.terminal.run_view import json_line


def show(underway: Underway, *, as_json: bool) -> None:
    """Say what runs now, and what to type to follow and to stop it."""
    run_dir = str(underway.paths.root)
    log = str(underway.paths.supervisor_log)
    jobs = count(underway.jobs, "job")
    if underway.running or not underway.pending:
        now = f"{underway.running:,} of {jobs} run now"
    else:
        now = f"none of {jobs} runs yet, since there is no room for one"
    text = f"{run_dir}: {now}. The experiment continues without this terminal, supervised by process {underway.pid}."
    if as_json:
        facts = {
            "run_dir": run_dir,
            "pid": underway.pid,
            "log": log,
            "running": underway.running,
        }
        print(json_line("detached", text, facts), end="")
        return
    argument = shlex.quote(run_dir)
    lines = [
        text,
        f"To follow it:  python -m orchestrator attach {argument}",
        f"To stop it:    python -m orchestrator stop {argument}",
        f"Its output is in {log}.",
    ]
    print(plain("\n".join(lines), keep="\n"))
