"""What waits for the compiling process goes on when it is done with the group, and also when it is gone; a model's own
kernels are compiled side by side."""

import shutil
import sys
import threading
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


def children() -> set[str]:
    """Of this process, also those that have ended and were not waited for."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_a_process_that_nobody_waits_for_leaves_no_zombie(program: Path) -> None:
    program.symlink_to(shutil.which("true") or "/bin/true")
    others = children()
    kept = Compiler()  # as a process that stands by keeps it
    for reaper in (thread for thread in threading.enumerate() if thread.name == "compiler"):
        reaper.join()
    assert children() <= others
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
    complete, side_by_side, run = {"weights-8-32-2"}, list[str](), list[str]()
    monkeypatch.setattr(kernels, "is_complete", complete.__contains__)
    monkeypatch.setattr(kernels, "note_complete", complete.add)
    monkeypatch.setattr(kernels, "compile_side_by_side", side_by_side.extend)
    monkeypatch.setattr(kernels, "run_group", run.append)
    for _ in range(2):
        kernels.Kernels().load_weights([(8, 32, 2), (6, 16, 1), (4, 32, 2)])
    assert side_by_side == ["weights-4-32-2", "weights-6-16-1"]
    assert run == ["weights-4-32-2", "weights-6-16-1", "weights-8-32-2"] * 2
