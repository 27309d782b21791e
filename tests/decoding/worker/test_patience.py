"""Work that gives way to what others compute."""

import os
import sys
import threading

import pytest

from decoding.worker.patience import patiently


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of single threads are Linux's")
def test_the_work_has_the_last_priority_and_its_caller_keeps_its_own() -> None:
    before = priority()
    assert patiently(priority) == 19
    assert priority() == before


def test_returns_what_the_work_does_and_raises_what_it_raises() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert patiently(lambda: 3) == 3
    with pytest.raises(ValueError, match="no"):
        patiently(fail)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    patiently(threading.active_count)
    assert threading.active_count() == before
