"""Work that gives way to what others compute."""

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from decoding.worker.patience import patiently

T = TypeVar("T")


def patient(work: Callable[[], T]) -> T | None:
    """Nobody asks for it before it is done."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as until, os.fdopen(writing, "w"):
        return patiently(work, until)


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of single threads are Linux's")
def test_the_work_has_the_last_priority_and_its_caller_keeps_its_own() -> None:
    before = priority()
    assert patient(priority) == 19
    assert priority() == before


def test_returns_what_the_work_does_and_raises_what_it_raises() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert patient(lambda: 3) == 3
    with pytest.raises(ValueError, match="no"):
        patient(fail)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    patient(threading.active_count)
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of single threads are Linux's")
def test_it_is_not_waited_for_once_it_is_asked_for() -> None:
    go_on = threading.Event()
    reading, writing = os.pipe()
    with os.fdopen(reading) as until, os.fdopen(writing, "w") as line:
        line.write("{}\n")
        line.flush()
        assert patiently(go_on.wait, until) is None
        assert until.readline() == "{}\n"
    go_on.set()
