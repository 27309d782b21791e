"""Compiled kernels are kept by the sources they come from: an edit anywhere they reach is seen by the next process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import CPUDispatcher

from decoding.core import kernel_cache
from decoding.core.kernel_cache import (
    FOLDER_NAME,
    PACKAGE,
    completed_name,
    folder_name,
    remove_old_folders,
    sources_of_kernels,
)
from decoding.engine import engine

DAY = kernel_cache.SECONDS_KEPT
WHERE = "import os, decoding; print(os.environ['NUMBA_CACHE_DIR'])"
KERNEL = """
import numba as nb
from decoding.core.inlined import inlined

@nb.njit(cache=True)
def kernel():
    return inlined()
"""
INLINED = """
import numba as nb
from decoding.core.constants import (
    ANSWER,
)

@nb.njit(cache=True, inline="always")
def inlined():
    return ANSWER
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of this one's name: a kernel that inlines a function that uses a constant, a file for each."""
    folder = tmp_path / "sources" / "decoding"
    (folder / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/__init__.py", "core/kernel_cache.py"):
        shutil.copy(PACKAGE / name, folder / name)
    (folder / "core" / "kernel.py").write_text(KERNEL)
    (folder / "core" / "inlined.py").write_text(INLINED)
    (folder / "core" / "constants.py").write_text("ANSWER = 1\n")
    (folder / "core" / "other.py").write_text("OTHER = 1\n")
    return folder


def run(package: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, without this one's cache."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(package.parents[1] / "cache")}
    command = (sys.executable, "-c", code)
    return subprocess.run(
        command,
        env=environment | variables,
        cwd=package.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_an_edit_to_what_a_kernel_inlines_is_seen_by_the_next_process(package: Path) -> None:
    code = "from decoding.core.kernel import kernel; print(kernel(), sum(kernel.stats.cache_hits.values()))"
    assert run(package, code).stdout == "1 0\n"
    assert run(package, code).stdout == "1 1\n"
    (package / "core" / "constants.py").write_text("ANSWER = 2\n")
    assert run(package, code).stdout == "2 0\n"
    (package / "core" / "inlined.py").write_text(INLINED.replace("return ANSWER", "return ANSWER + 1"))
    assert run(package, code).stdout == "3 0\n"


def test_only_edits_that_reach_a_kernel_make_another_folder(package: Path) -> None:
    before = folder_name(package)
    assert FOLDER_NAME.fullmatch(before)
    (package / "core" / "other.py").write_text("OTHER = 2\n")
    assert folder_name(package) == before
    (package / "core" / "other.py").write_text("import numba\n")
    assert folder_name(package) != before


def test_every_file_with_a_kernel_or_something_that_a_kernel_uses_is_among_the_sources() -> None:
    names = set(sources_of_kernels(PACKAGE))
    modules = [module for name, module in sys.modules.items() if name.startswith("decoding.")]
    kernels = [each for module in modules for each in vars(module).values() if isinstance(each, CPUDispatcher)]
    used = {Path(kernel.py_func.__code__.co_filename) for kernel in kernels}
    assert len(used) > 20
    assert {path.relative_to(PACKAGE).as_posix() for path in used} <= names
    assert {"attention/lanes.py", "core/tree.py", "cache/kv_store.py"} <= names
    assert Path(engine.__file__).relative_to(PACKAGE).as_posix() not in names


def test_another_copy_of_the_sources_is_not_taken_for_complete(package: Path, tmp_path: Path) -> None:
    """Numba files a kernel by the path of its source, so that a copy must compile its own."""
    assert completed_name(package) == completed_name(package)
    assert completed_name(package) != completed_name(tmp_path / "copy" / package.name)


def test_two_processes_and_their_children_share_one_folder_of_the_users(package: Path) -> None:
    child = f"import subprocess, sys, decoding; subprocess.run([sys.executable, '-c', {WHERE!r}], check=True)"
    folder = package.parents[1] / "cache" / "gander" / "kernels" / folder_name(package)
    assert {run(package, code).stdout for code in (WHERE, WHERE, child)} == {f"{folder}\n"}


def test_the_operators_folder_is_used_and_never_a_folder_inside_a_folder_of_ours(package: Path) -> None:
    base = package.parents[1] / "base"
    folder = run(package, WHERE, NUMBA_CACHE_DIR=str(base)).stdout.strip()
    assert Path(folder).parent == base
    (package / "core" / "constants.py").write_text("ANSWER = 2\n")
    other = run(package, WHERE, NUMBA_CACHE_DIR=folder).stdout.strip()
    assert other != folder
    assert Path(other).parent == base


def test_numba_that_was_there_first_is_told(package: Path) -> None:
    code = f"import numba, {WHERE.removeprefix('import ')}; print(numba.config.CACHE_DIR)"
    first, second = run(package, code).stdout.splitlines()
    assert first == second


def test_where_the_folder_cannot_be_made_a_temporary_one_serves_until_the_end(package: Path) -> None:
    blocked = package.parents[1] / "file"
    blocked.touch()
    ended = run(package, f"{WHERE}; print(os.path.isdir(os.environ['NUMBA_CACHE_DIR']))", NUMBA_CACHE_DIR=str(blocked))
    folder, existed = ended.stdout.splitlines()
    assert existed == "True"
    assert not Path(folder).parent.exists()
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("Compiled kernels cannot be kept")
    assert str(blocked) in ended.stderr


def test_a_folder_without_room_is_not_used_unless_all_kernels_are_in_it(package: Path) -> None:
    base = package.parents[1] / "base"
    little = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))"
    ended = run(package, f"{little}; {WHERE}", NUMBA_CACHE_DIR=str(base))
    assert not Path(ended.stdout.strip()).is_relative_to(base)
    assert ended.stderr.startswith("Compiled kernels cannot be kept")
    complete = "import decoding.core.kernel_cache as cache; cache.note_complete(); print(cache.is_complete())"
    assert run(package, complete, NUMBA_CACHE_DIR=str(base)).stdout == "True\n"
    assert Path(run(package, f"{little}; {WHERE}", NUMBA_CACHE_DIR=str(base)).stdout.strip()).parent == base


def test_kernels_in_a_folder_that_cannot_be_written_are_used(package: Path) -> None:
    code = "from decoding.core.kernel import kernel; print(kernel(), sum(kernel.stats.cache_hits.values()))"
    kept = str(package.parents[1] / "cache")
    refuse = f"""import tempfile
make = tempfile.TemporaryFile
tempfile.TemporaryFile = lambda dir: make(dir="/dev/null" if str(dir).startswith({kept!r}) else dir)"""
    assert run(package, code).stdout == "1 0\n"
    ended = run(package, f"{refuse}\n{code}")
    assert ended.stdout == "1 1\n"
    assert ended.stderr.startswith("Compiled kernels cannot be kept")
    assert ended.stderr.count("\n") == 1


def test_old_folders_go_but_for_the_last_four_and_those_of_the_last_day(tmp_path: Path) -> None:
    ages = [0.1, 0.2, 0.3, 0.4, 3, 4]
    folders = [tmp_path / f"gander-{place:016x}" for place in range(len(ages))]
    for folder, age in zip(folders, ages, strict=True):
        folder.mkdir()
        os.utime(folder, (10 * DAY, (10 - age) * DAY))
    (tmp_path / "somebody-elses").mkdir()
    os.utime(tmp_path / "somebody-elses", (0, 0))
    remove_old_folders(tmp_path, 10 * DAY)
    assert {path.name for path in tmp_path.iterdir()} == {*(folder.name for folder in folders[:4]), "somebody-elses"}
    for folder in folders[4:]:
        folder.mkdir()
        os.utime(folder, (10 * DAY, 9.5 * DAY))
    remove_old_folders(tmp_path, 10 * DAY)
    assert all(folder.exists() for folder in folders)
