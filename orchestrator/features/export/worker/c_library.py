"""Compiles an exported C header with the machine's own compiler, to run it beside the policy."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.text import shortened
from orchestrator.features.export.worker.exported_policy import ExportError, Floats

COMPILER = "cc"
FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC")
Act: TypeAlias = Callable[[NDArray[Any]], Mapping[str, Floats]]
"""Observations ``(batch, n)`` → ``action`` and ``ctrl``, ``(batch, actions)`` each."""


def compiled(header: Path, folder: Path) -> Act:
    """The function of ``header``, in a library that is made in ``folder``.

    :raises ExportError: there is no compiler, or it refuses the header.
    """
    if shutil.which(COMPILER) is None:
        raise ExportError(f"{header}: there is no C compiler `{COMPILER}` here that would check it")
    text = header.read_text(encoding="utf-8")
    name, actions, observations = _interface(text)
    has_ctrl = f"float ctrl[{name.upper()}_ACTIONS]" in text
    (folder / "policy.h").write_text(text, encoding="utf-8")
    source = folder / "policy.c"
    library = folder / "policy.so"
    ctrl = f", ctrl + i * {actions}" if has_ctrl else ""
    source.write_text(
        '#include "policy.h"\n'
        "void act(int rows, const float *in, float *action, float *ctrl) {\n"
        f"(void)ctrl; for (int i = 0; i < rows; i++) {name}_act(in + i * {observations}, "
        f"action + i * {actions}{ctrl});\n}}\n"
    )
    command = [COMPILER, *FLAGS, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(shortened(done.stderr).split())
        raise ExportError(f"{header} does not compile: {reason}")
    function = ctypes.CDLL(str(library)).act

    def act(observation: NDArray[Any]) -> Mapping[str, Floats]:
        inputs = np.ascontiguousarray(observation, np.float32)
        outputs = {
            kind: np.zeros((len(inputs), actions), np.float32) for kind in ("action", "ctrl")
        }
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (inputs, *outputs.values())]
        function(len(inputs), *pointers)
        return outputs if has_ctrl else {"action": outputs["action"]}

    return act


def _interface(text: str) -> tuple[str, int, int]:
    """The name of the policy in a header, and its numbers of actions and observations."""
    (name,) = re.findall(r"int (\w+)_act\(", text)
    numbers = {
        kind: int(number)
        for kind, number in re.findall(r"_(OBSERVATIONS|ACTIONS) (\d+)$", text, re.MULTILINE)
    }
    return name, numbers["ACTIONS"], numbers["OBSERVATIONS"]
