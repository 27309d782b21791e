"""Runs measures one after the other until a deadline, and writes what they found after each: nothing is lost.

Knows nothing of what they measure. Invariant: a measure that fails is told in the file, and the next one runs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from decoding.core.files.output import check_output, is_json_of, write_output

Measure = Callable[[], Any]


class Found(msgspec.Struct, kw_only=True):
    """found: by the measures' names; failed: why some found nothing; left_out: for which there was no time; seconds:
    that each took."""

    part: str
    where: str
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    left_out: list[str] = []
    seconds: dict[str, float] = {}


class DeadlinePassed(BaseException):
    """The time of the part is over."""


def run(found: Found, measures: Mapping[str, Measure], seconds: float, path: Path) -> Found:
    """Run the measures in order, for so many seconds at most. Raises ConfigError for a file that is not ours."""
    check_output(path, is_json_of(Found))
    left, end = list(measures), time.monotonic() + seconds
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        while left:
            name, started = left[0], time.monotonic()
            try:
                found.found[name] = measures[name]()
            except Exception as error:
                found.failed[name] = f"{type(error).__name__}: {error}"[:2000]
            found.seconds[name] = round(time.monotonic() - started, 2)
            left.pop(0)
            found.left_out = left.copy()
            _write(path, found)
            if time.monotonic() >= end:
                break
    except DeadlinePassed:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    found.left_out = left
    _write(path, found)
    return found


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise DeadlinePassed


def _write(path: Path, found: Found) -> None:
    write_output(path, msgspec.json.format(msgspec.json.encode(found), indent=1), is_json_of(Found))
