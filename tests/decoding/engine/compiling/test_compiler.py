"""What waits for the compiling process goes on when it is done with the group, and also when it is gone."""

import shutil
import sys
from pathlib import Path

import pytest

from decoding.engine.compiling.compiler import Compiler

PROGRAM = """#!/bin/sh
echo attention
echo auto
sleep 0.2
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is run in Python's place."""
    path = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def test_a_group_is_waited_for_and_known_from_then_on(program: Path) -> None:
    program.write_text(PROGRAM)
    program.chmod(0o755)
    compiler = Compiler()
    for group in ("auto", "attention", "auto", "never named"):
        compiler.wait_for(group)
    compiler.finish()


def test_a_process_that_dies_holds_nobody_up(program: Path) -> None:
    program.symlink_to(shutil.which("false") or "/bin/false")
    compiler = Compiler()
    compiler.wait_for("attention")
    compiler.finish()
