"""The function of an exported C header, compiled by the compiler of this machine."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC")


def compiled(header: Path, folder: Path) -> Callable[[Any], Mapping[str, NDArray[np.float32]]]:
    """Compile ``header`` in ``folder``. Return a function from observations ``(batch, n)``, or the
    entries of a ``Dict``, to ``action`` and ``ctrl``.
    """
    text = header.read_text(encoding="utf-8")
    (name,) = re.findall(r"int (\w+)_act\(", text)
    defined = rf"^#define {name.upper()}_(\w+) (\d+)$"
    numbers = {one: int(number) for one, number in re.findall(defined, text, re.MULTILINE)}
    inputs = {
        one.removeprefix("SIZE_"): size for one, size in numbers.items() if one.startswith("SIZE_")
    }
    observations, actions = numbers["OBSERVATIONS"], numbers["ACTIONS"]
    has_ctrl = f"float ctrl[{name.upper()}_ACTIONS]" in text
    firsts = itertools.accumulate([0, *inputs.values()][: len(inputs) or 1])
    given = ", ".join(f"in + i * {observations} + {first}" for first in firsts)
    ctrl = f", ctrl + i * {actions}" if has_ctrl else ""
    (folder / "policy.c").write_text(
        f'#include "{header}"\n'
        "void act(int rows, const float *in, float *action, float *ctrl) {\n"
        f"(void)ctrl; for (int i = 0; i < rows; i++) {name}_act({given}, action + i * {actions}{ctrl});\n}}\n"
    )
    command = ["cc", *FLAGS, "policy.c", "-o", "policy.so", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "policy.so")).act

    def act(observation: Any) -> Mapping[str, NDArray[np.float32]]:
        if isinstance(observation, Mapping):
            observation = np.concatenate([observation[one] for one in inputs], axis=-1)
        rows = np.ascontiguousarray(observation, np.float32)
        outputs = {kind: np.zeros((len(rows), actions), np.float32) for kind in ("action", "ctrl")}
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, *outputs.values())]
        function(len(rows), *pointers)
        return outputs if has_ctrl else {"action": outputs["action"]}

    return act
