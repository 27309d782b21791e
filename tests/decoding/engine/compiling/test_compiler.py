"""What waits for the compiling process goes on when it is done with the group, and also when it is gone; a model's own
kernels are compiled side by side."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from decoding.engine.compiling import kernels
from decoding.engine.compiling.compiler import Compiler, compile_side_by_side
from decoding.process.machine import Cores

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


def test_a_process_that_nobody_waits_for_leaves_no_zombie(program: Path, tmp_path: Path) -> None:
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n")
    program.chmod(0o755)
    kept, file = Compiler(), tmp_path / "pid"  # as a process that stands by keeps it
    for _ in range(6000):
        if file.exists() and (number := file.read_text().strip()) and not Path("/proc", number).exists():
            break
        time.sleep(0.01)
    else:
        pytest.fail("the process is still there, or is a zombie")
    kept.finish()


def test_groups_of_its_own_are_compiled_in_processes_side_by_side(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text(f'#!/bin/sh\nshift 4\necho "$@" >> {tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setattr("decoding.engine.compiling.compiler.cores", lambda: Cores(2, 2, None))
    compile_side_by_side(["weights-4-32", "weights-5-32", "weights-6-16"])
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sorted(asked) == ["weights-4-32 weights-6-16", "weights-5-32"]


def test_a_models_own_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    complete, side_by_side, run = {"weights-8-32"}, list[str](), list[str]()
    monkeypatch.setattr(kernels, "is_complete", complete.__contains__)
    monkeypatch.setattr(kernels, "note_complete", complete.add)
    monkeypatch.setattr(kernels, "compile_side_by_side", side_by_side.extend)
    monkeypatch.setattr(kernels, "run_group", run.append)
    for _ in range(2):
        kernels.Kernels().load_weights([(8, 32), (6, 16), (4, 32)])
    assert side_by_side == ["weights-4-32", "weights-6-16"]
    assert run == ["weights-4-32", "weights-6-16", "weights-8-32"] * 2
