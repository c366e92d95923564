"""What a worker says about the exception that ended its attempt."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.exit_codes import ExitCode
from orchestrator.worker.runtime import failures


def test_the_place_is_the_last_line_of_the_users_own_code_also_behind_an_error_that_hides_it(
    tmp_path: Path,
) -> None:
    code = {
        "gait.py": "def fall():\n    return {}['knee']\n\ndef step():\n    fall()\n",
        "site-packages/wrapper.py": "def call(step):\n    try:\n        step()\n    except KeyError as error:\n"
        "        raise ValueError('cannot step') from error\n",
    }
    defined: dict[str, Any] = {}
    for name, text in code.items():
        exec(compile(text, str(tmp_path / name), "exec"), defined)
    with pytest.raises(KeyError) as direct:
        defined["step"]()
    assert failures.describe(direct.value) == f"KeyError: 'knee' ({tmp_path / 'gait.py'}:2)"
    with pytest.raises(ValueError, match="cannot step") as hidden:
        defined["call"](defined["step"])
    assert hidden.value.__traceback__ is not None
    error = hidden.value.with_traceback(
        hidden.value.__traceback__.tb_next
    )  # without this file, which is the user's too
    assert failures.describe(error) == f"ValueError: cannot step ({tmp_path / 'gait.py'}:2)"


def test_a_memory_limit_is_named_where_memory_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("importing the C-extensions failed")
    error.__cause__ = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert "ulimit" not in failures.describe(error)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 << 20, -1))
    assert "limited to 300 MiB" in failures.describe(error)
    assert "ulimit" not in failures.describe(ValueError("of the user"))


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, ExitCode.DISK_FULL), (errno.EFBIG, ExitCode.ERROR)]
)
def test_a_full_disk_concerns_all_jobs_and_a_file_at_its_limit_one(
    number: int, code: ExitCode
) -> None:
    assert failures.classify(OSError(number, os.strerror(number)))[0] == code
