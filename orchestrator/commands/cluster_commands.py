"""``python -m orchestrator cluster …``: arguments to calls, nothing else."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(
    help="Make a cluster of machines, for `run --executor ray`: docs/cluster.md tells how.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Own = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST", help="This machine's address for the others.", show_default="the one they see"
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without a token: whoever reaches the machine can run code on it.")
]


@app.command()
def up(
    host: Own = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the head listens.")] = 6379,
    insecure: Insecure = False,
) -> None:
    """Start a cluster: this machine is its head, and its first node."""
    from orchestrator.executors.ray.cluster import up

    print("\n".join(up.up(host=host, port=port, insecure=insecure)))


@app.command()
def join(
    head: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of the cluster's head.")],
    host: Own = None,
    insecure: Insecure = False,
) -> None:
    """Make this machine a node of a cluster. It needs the cluster's token: `cluster up` says how to copy it."""
    from orchestrator.executors.ray.cluster import up

    print("\n".join(up.join(head, host=host, insecure=insecure)))


@app.command()
def status(
    where: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Of the head.", show_default="the cluster of this machine"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Machine-readable output, and nothing else, on standard output.")
    ] = False,
) -> None:
    """Show the nodes: cores, memory, GPUs, our jobs, versions, and where jobs are slow."""
    from orchestrator.executors.ray.cluster import cluster_status as statuses

    found = statuses.status(where)
    if as_json:
        print(json.dumps(found.facts(), indent=1, ensure_ascii=False))
    else:
        from orchestrator.terminal import cluster_view

        cluster_view.show(found)


@app.command()
def down() -> None:
    """End this machine's part of a cluster, and nothing else; jobs that run here go on elsewhere."""
    from orchestrator.executors.ray.cluster import down

    print("\n".join(down.down()))
