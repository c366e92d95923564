"""The format of ``[track]``, key by key; ``track_settings.py`` has what it means."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import Field

from orchestrator.keys.value_types import Expected, TomlTable, key

NOT_IN_WANDB = r"/\\#?%:"
"""Characters that W&B refuses in the name of a project, as in a regular expression's set."""
LONGEST_IN_WANDB = 128
"""Characters of the name of a project."""
WANDB_PROJECT = f"^[^{NOT_IN_WANDB}]{{1,{LONGEST_IN_WANDB}}}$"
WANDB_PROJECTS = f"a name of 1 to {LONGEST_IN_WANDB} characters without / \\ # ? % :"
_Text = Annotated[str, MinLen(1)]
_WandbProject = Annotated[str, Field(pattern=WANDB_PROJECT), Expected(WANDB_PROJECTS)]


class WandbTable(TomlTable):
    """Weights & Biases."""

    project: _WandbProject | None = key(
        None, "Project; unset: the name of the experiment.", "robots"
    )
    entity: _Text | None = key(None, "User or team; unset: your own.", "my-team")
    mode: Literal["online", "offline"] = key(
        "online",
        "online, or offline: into the run directory, from which `wandb sync` uploads.",
        "offline",
    )


class MlflowTable(TomlTable):
    """MLflow."""

    uri: _Text | None = key(
        None,
        "Tracking URI; unset: mlflow.db in the run directory.",
        "sqlite:////home/me/experiments.db",
    )
    experiment: _Text | None = key(
        None, "MLflow's experiment; unset: the name of the experiment.", "robots"
    )


class TrackTable(TomlTable):
    """Trackers that get learning curves, hyperparameters and results of every job, read from the
    run directory.
    """

    tensorboard: bool = key(
        False, "Write event files into the folder tensorboard of the run directory.", True
    )
    wandb: WandbTable | None = key(None, "Send to Weights & Biases.", shown={})
    mlflow: MlflowTable | None = key(None, "Send to MLflow.", shown={})
