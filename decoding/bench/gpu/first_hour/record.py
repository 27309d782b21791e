"""What was measured: a line of JSON a measure, written as soon as it is known, so that nothing is lost with a process.

Knows nothing of what is measured. Invariant: a measure that fails is told in its line, and the next one runs, unless
the device itself failed: then whatever else this process asks of it would.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from decoding.model.refusal import is_device_error

MOST_CHARS = 2000
T = TypeVar("T")


class Line(msgspec.Struct, kw_only=True):
    """found: by the measure, None if it failed, for the reason `failed`. seconds: that it took."""

    stage: str
    name: str
    seconds: float
    found: Any = None
    failed: str | None = None


class DeviceFailed(Exception):
    """Nothing more can be measured in this process."""


class Record:
    """Of one stage, in a file that others' lines are in as well."""

    def __init__(self, path: Path, stage: str) -> None:
        self._path, self._stage = path, stage

    def measure(self, name: str, work: Callable[[], T], told: Callable[[T], Any] = lambda found: found) -> T | None:
        """What `work` returns; None if it fails. told: what the record has of it. Raises DeviceFailed."""
        started = time.perf_counter()
        try:
            found = work()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-4:])}"
            self.write(name, time.perf_counter() - started, failed=reason[:MOST_CHARS])
            if is_device_error(error):
                raise DeviceFailed(name) from error
            return None
        self.write(name, time.perf_counter() - started, told(found))
        return found

    def write(self, name: str, seconds: float, found: Any = None, failed: str | None = None) -> None:
        line = Line(stage=self._stage, name=name, seconds=round(seconds, 2), found=found, failed=failed)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line, enc_hook=str) + b"\n")


def read_lines(content: bytes) -> list[Line]:
    """Raises msgspec.MsgspecError for what is no record. A last line that was cut off is left out."""
    whole = content[: content.rfind(b"\n") + 1]
    return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]


def is_record(content: bytes) -> bool:
    try:
        return bool(read_lines(content))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
