"""Compiles an exported C header with the machine's own compiler, to run it beside the policy."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from orchestrator.core.text import shortened
from orchestrator.features.export.worker.exported_policy import ExportError, Floats
from orchestrator.worker.training.trained_policy import Observation

COMPILER = "cc"
FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC")
Act: TypeAlias = Callable[[Observation], Mapping[str, Floats]]
"""Observations ``(batch, n)``, or the entries of a ``Dict``, → ``action`` and ``ctrl``, ``(batch,
actions)`` each."""


def compiled(header: Path, folder: Path) -> Act:
    """The function of ``header``, in a library that is made in ``folder``.

    :raises ExportError: there is no compiler, or it refuses the header.
    """
    if shutil.which(COMPILER) is None:
        raise ExportError(
            f"{header}: there is no C compiler `{COMPILER}` here that would check it; install one, or leave "
            "out --check"
        )
    text = header.read_text(encoding="utf-8")
    name, actions, observations, inputs = _interface(text)
    has_ctrl = f"float ctrl[{name.upper()}_ACTIONS]" in text
    (folder / "policy.h").write_text(text, encoding="utf-8")
    source = folder / "policy.c"
    library = folder / "policy.so"
    ctrl = f", ctrl + i * {actions}" if has_ctrl else ""
    firsts = itertools.accumulate([0, *inputs.values()][: len(inputs) or 1])
    given = ", ".join(f"in + i * {observations} + {first}" for first in firsts)
    source.write_text(
        '#include "policy.h"\n'
        "void act(int rows, const float *in, float *action, float *ctrl) {\n"
        f"(void)ctrl; for (int i = 0; i < rows; i++) {name}_act({given}, action + i * {actions}{ctrl});\n}}\n"
    )
    command = [COMPILER, *FLAGS, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(shortened(done.stderr).split())
        raise ExportError(
            f"{header} does not compile: {reason}; expected a compiler of C99 as `{COMPILER}`, with its "
            "mathematical library; without one, export to .npz"
        )
    function = ctypes.CDLL(str(library)).act

    def act(observation: Observation) -> Mapping[str, Floats]:
        if isinstance(observation, Mapping):
            observation = np.concatenate([observation[one] for one in inputs], axis=-1)
        rows = np.ascontiguousarray(observation, np.float32)
        outputs = {kind: np.zeros((len(rows), actions), np.float32) for kind in ("action", "ctrl")}
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, *outputs.values())]
        function(len(rows), *pointers)
        return outputs if has_ctrl else {"action": outputs["action"]}

    return act


def _interface(text: str) -> tuple[str, int, int, dict[str, int]]:
    """The name of the policy in a header, its numbers of actions and observations, and the sizes of
    its inputs where it has several.
    """
    (name,) = re.findall(r"int (\w+)_act\(", text)
    numbers = {
        kind: int(number)
        for kind, number in re.findall(
            rf"^#define {name.upper()}_(OBSERVATIONS|ACTIONS) (\d+)$", text, re.MULTILINE
        )
    }
    sizes = re.findall(rf"^#define {name.upper()}_SIZE_(\w+) (\d+)$", text, re.MULTILINE)
    inputs = {one: int(size) for one, size in sizes}
    return name, numbers["ACTIONS"], numbers["OBSERVATIONS"], inputs
