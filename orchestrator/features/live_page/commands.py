"""The command that shows experiments in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.core.errors import UsageError
from orchestrator.core.text import install_extra, is_installed

NEEDED = ("starlette", "uvicorn")

app = typer.Typer()


@app.command()
def serve(
    path: Annotated[
        Path | None,
        Argument(
            metavar="[RUN_DIR|FOLDER]",
            help="A run directory, also one that a run is still to make; or a folder with some of them below it.",
            show_default="all your experiments on this machine, as `list --all` shows them",
        ),
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8711,
    host: Annotated[
        str,
        Option(
            help="Address to listen on. Others than 127.0.0.1 can be reached from elsewhere; a token is asked."
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        Option(
            metavar="HOST",
            help="Name of the server elsewhere, as behind a reverse proxy; may be given several"
            " times. A token is asked.",
        ),
    ] = None,
) -> None:
    """Show experiments in a browser while they run: jobs, learning curves, schedule, contention,
    logs, videos, search.

    The page only reads the run directory. From another machine: `ssh -L 8711:localhost:8711
    MACHINE`, then open http://localhost:8711. Ctrl-C ends this command alone: the experiments
    continue.
    """
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise UsageError(
            f"serve: {' and '.join(missing)} not installed here: {install_extra('web')}"
        )
    from orchestrator.features.live_page import live_server

    if path is not None and not path.exists():
        shared.print_progress(f"{path}: there is nothing yet; the page waits for a run to make it")
    elif path is not None and not path.is_dir():
        raise UsageError(
            f"{path}: this is a file; expected a run directory, or a folder with some below it"
        )
    server = live_server.open_server(path, host=host, port=port, names=name or ())
    with shared.interruptible("no longer serving; the experiments continue"):
        shared.print_progress(
            f"serving {path or 'your experiments on this machine'}; Ctrl-C ends it"
        )
        print(server.address, flush=True)
        for one in name or ():
            shared.print_progress(
                f"{one}: open the address that your proxy gives it, with the same #token=… at its end"
            )
        server.run()
