"""Commands on whole experiments, which run in this terminal, in another one or in none."""

from __future__ import annotations

import signal

import typer

from orchestrator.commands.shared_options import AsJson, RunDir, stoppable

app = typer.Typer()


@app.command()
def attach(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Follow a running experiment to its end, wherever it was started; ends with its exit code.

    Ctrl-C ends this command alone: the experiment continues.
    """
    from orchestrator.experiment import attach as follower
    from orchestrator.terminal import attach_view

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by __main__; here a message follows
        signal.signal(signal.SIGINT, signal.default_int_handler)
    commands = f"`attach {run_dir}` follows it again, `stop {run_dir}` stops it"
    with stoppable(f"detached; the experiment continues. {commands}"):
        paths, holder = follower.watched(run_dir)
        last = attach_view.show(follower.follow(paths, holder), as_json=as_json)
        end = follower.end_of(paths, holder)
        attach_view.show_end(last, end, str(run_dir), as_json=as_json)
        raise typer.Exit(end.exit_code)
