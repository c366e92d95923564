"""The error of robots and environments that cannot be trained."""

from __future__ import annotations

from typing import Literal


class UnfitError(Exception):
    """The robot or environment cannot be trained; the message, ``cause`` and ``key`` are those of
    the answer's ``problem``.

    :param process_exits: whether the next robot might hang in this process, as MuJoCo may have
        aborted with locks held.
    """

    def __init__(
        self,
        message: str,
        cause: Literal["robot", "code", "settings", "init"] = "robot",
        key: str | None = None,
        *,
        process_exits: bool = False,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.key = key
        self.process_exits = process_exits


class WrongRootError(UnfitError):
    """The file is no MJCF: its root element is another one."""

    def __init__(self, message: str, root: str) -> None:
        super().__init__(message)
        self.root = root
