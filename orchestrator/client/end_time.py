"""The time by which a run has ended, as a user gives it with ``--until``."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from datetime import time as time_of_day

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import is_python, option
from orchestrator.keys.value_types import DURATION, ExpectedError, parse_duration

_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_EXPECTED = 'a time of day such as "18:00", or a duration such as "2h", "90min" or "1h30min"'
_WITH_GRACE = " (--grace); give a later time, or a smaller --grace"
_LONGEST_S = 366 * 86_400.0


def parse(text: str, grace_s: float) -> float:
    """When the run has to have ended, in seconds since the epoch; a time of day that has passed is
    tomorrow's.

    :raises UsageError: it is neither a time nor a duration, or nearer than the time that workers
        have to exit.
    """
    now = time.time()
    given = option("until", text)
    try:
        until = _next(text.strip()) if ":" in text else now + parse_duration(text)
    except ExpectedError as error:
        raise UsageError(f"{given}: {str(error).replace(DURATION, _EXPECTED)}") from None
    if until - now > _LONGEST_S:
        raise UsageError(f"{given}: is more than a year ahead; expected {_EXPECTED}")
    if until - now <= grace_s:
        raise UsageError(
            f"{given}: is {until - now:.0f} s ahead, and workers have {grace_s:g} s to save a checkpoint and exit"
            + ("; give a later time" if is_python() else _WITH_GRACE)
        )
    return until


def _next(text: str) -> float:
    """The next time that a clock shows ``text``: also where summer time begins or ends in
    between.
    """
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise ExpectedError(f"expected {DURATION}")
    try:
        wanted = time_of_day(int(match[1]), int(match[2]), int(match[3] or 0))
    except ValueError:
        raise ExpectedError(f"there is no such time of day; expected {DURATION}") from None
    moment = datetime.combine(datetime.now().date(), wanted)
    return (moment if moment > datetime.now() else moment + timedelta(days=1)).timestamp()
