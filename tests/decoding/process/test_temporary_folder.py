"""What a process keeps in a temporary folder goes with it; a killed one's goes with the next that makes one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from decoding.process.temporary_folder import TemporaryFolder

PREFIX = "gander-test-"
MAKE = f"""
import sys
from decoding.process.temporary_folder import TemporaryFolder
folder = TemporaryFolder({PREFIX!r})
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_ours_alone_and_goes_with_close(temporary: Path) -> None:
    folder = TemporaryFolder(PREFIX)
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "full").write_text("of something")
    folder.close()
    folder.close()
    assert not any(temporary.iterdir())


def test_the_folder_of_a_killed_process_goes_when_the_next_is_made(temporary: Path) -> None:
    command = [sys.executable, "-c", MAKE]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        assert process.stdout is not None
        other = Path(process.stdout.readline().strip())
        TemporaryFolder(PREFIX).close()
        assert other.is_dir(), "its process is alive"
        process.send_signal(signal.SIGKILL)
    assert other.is_dir()
    TemporaryFolder(PREFIX).close()
    assert not other.exists()


def test_what_is_not_certainly_ours_stays(temporary: Path) -> None:
    (elsewhere := temporary / "elsewhere").mkdir()
    (elsewhere / "lock").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}unlocked").mkdir()
    (linked := temporary / f"{PREFIX}linked").mkdir()
    (linked / "lock").symlink_to(elsewhere / "lock")
    (temporary / f"{PREFIX}file").touch()
    (other := temporary / "another-name").mkdir()
    (other / "lock").touch()
    before = sorted(temporary.rglob("*"))
    TemporaryFolder(PREFIX).close()
    assert sorted(temporary.rglob("*")) == before


def test_a_folder_that_cannot_be_locked_is_not_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="no locks here"):
        TemporaryFolder(PREFIX)
    assert not any(temporary.iterdir())
