"""``cluster``: make a Ray cluster of several machines, look at it, and leave it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import AsJson, print_json, print_text

app = typer.Typer()
cluster = typer.Typer(
    help="Make a cluster of several machines, for `run --executor ray`; see docs/cluster.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cluster, name="cluster")

Host = Annotated[
    str | None,
    Option(
        "--address",
        metavar="HOST",
        help="Address under which other machines reach this one.",
        show_default="the one on the default route",
    ),
]
Insecure = Annotated[
    bool,
    Option(
        "--insecure", help="Use no token: everybody who can reach the machine can run code on it."
    ),
]


@cluster.command()
def up(
    host: Host = None,
    port: Annotated[
        int, Option(min=1, max=65535, help="Port on which the head node listens.")
    ] = 6379,
    insecure: Insecure = False,
) -> None:
    """Start a cluster with this machine as its head node."""
    from orchestrator.features.ray.cluster import up

    print_text("\n".join(up.up(host=host, port=port, insecure=insecure)))


@cluster.command()
def join(
    head: Annotated[str, Argument(metavar="HOST:PORT", help="Address of the cluster's head node.")],
    host: Host = None,
    insecure: Insecure = False,
) -> None:
    """Add this machine to a cluster. It needs the cluster's token: `cluster up` shows how to copy
    it.
    """
    from orchestrator.features.ray.cluster import up

    print_text("\n".join(up.join(head, host=host, insecure=insecure)))


@cluster.command()
def status(
    address: Annotated[
        str | None,
        Option(
            "--address",
            metavar="HOST:PORT",
            help="Address of the cluster's head node.",
            show_default="the cluster of this machine",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every node: cores, memory, GPUs, jobs of this program, package versions, and where jobs
    are slow.
    """
    from orchestrator.features.ray import cluster_view
    from orchestrator.features.ray.cluster import cluster_status

    found = cluster_status.status(address)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        cluster_view.show(found)


@cluster.command()
def down() -> None:
    """Remove this machine from its cluster and end the cluster's processes on it; its jobs continue
    elsewhere.
    """
    from orchestrator.features.ray.cluster import down

    print_text("\n".join(down.down()))
