"""What a process was at is known once it is dead, of whatever cause."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from decoding.worker.running_file import RunningFile, read_running

KILLED = """
import os, signal, sys
from decoding.worker.running_file import RunningFile
RunningFile(int(sys.argv[1])).write([f"request-{number}" for number in range(500)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_names_are_there_though_their_writer_is_killed_right_after() -> None:
    with tempfile.TemporaryFile() as file:
        command = [sys.executable, "-c", KILLED, str(file.fileno())]
        assert subprocess.run(command, pass_fds=(file.fileno(),)).returncode == -9
        assert read_running(file.fileno()) == {f"request-{number}" for number in range(500)}


def test_the_last_names_are_read_however_long_the_list_before_was() -> None:
    with tempfile.TemporaryFile() as file:
        assert read_running(file.fileno()) == set(), "nothing was written"
        running = RunningFile(file.fileno())
        for names in (["one", "another", "a third"], ["one"], ["one"], ["two"], []):
            running.write(names)
            assert read_running(file.fileno()) == set(names)


def test_names_that_cannot_be_written_are_logged_and_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Path("/dev/full").open("wb") as full:
        RunningFile(full.fileno()).write(["one"])
    assert "cannot be written down: No space left on device" in caplog.text
