"""Compiled kernels are kept by the sources they come from: an edit anywhere they reach is seen by the next process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from numba.core.registry import CPUDispatcher

from decoding.engine import engine
from decoding.kernels import cache as kernel_cache
from decoding.kernels.cache import (
    FOLDER_NAME,
    NUM_KEPT,
    PACKAGE,
    completed_name,
    folder_name,
    remove_old_folders,
    sources_of_kernels,
)
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.timing import ModelTimings
from tests.strangers_files import lost, picture, plant

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
    (folder / "process").mkdir()
    (folder / "kernels").mkdir()
    taken = (
        "__init__.py",
        "core/__init__.py",
        "kernels/__init__.py",
        "kernels/cache.py",
        "kernels/processor.py",
        "process/__init__.py",
        "process/machine.py",
        "process/temporary_folder.py",
    )
    for name in taken:
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
    assert {"kernels/cpu/lanes.py", "core/tree.py", "cache/kv_store.py"} <= names
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
    kept, temporary = ended.stderr.splitlines()
    assert kept.startswith("Compiled kernels cannot be kept")
    assert re.search(rf"64 MiB must be free, .*: '{base}/gander-", kept)
    assert re.search(r"no room in a temporary folder either \(.*64 MiB must be free, ", temporary)
    others = next(base.glob("gander-*")) / "complete-0123456789abcdef"  # for another kind of processor
    others.touch()
    assert not Path(run(package, f"{little}; {WHERE}", NUMBA_CACHE_DIR=str(base)).stdout.strip()).is_relative_to(base)
    complete = "import decoding.kernels.cache as cache; cache.note_complete(); print(cache.is_complete())"
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


NUMBAS, OURS = (
    ("core_" + "a" * 40, "stores_" + "b" * 40),
    ("complete-0123456789abcdef", "timings-0123456789abcdef.json"),
)


def kernels_in(folder: Path) -> None:
    """What a folder holds after a start."""
    (folder / NUMBAS[0]).mkdir(parents=True)
    for name in ("tree.chain-12.py311.1.nbc", "tree.chain-12.py311.nbi", "tree.chain-12.py311.nbi.tmp.0a1b2c"):
        (folder / NUMBAS[0] / name).write_bytes(b"\x80\x04 a pickle")
    (folder / OURS[0]).touch()
    (folder / OURS[1]).write_bytes(b'{"threads":1}')
    (folder / "tmp0a_b1c2d").touch()  # of a process that was killed


@pytest.mark.parametrize(
    "path",
    ["thesis.txt", f"{NUMBAS[0]}/thesis.txt", f"{NUMBAS[0]}/a.nbi", "timings-0123456789abcde0.json", "a/b", "link"],
)
def test_an_old_folder_goes_unless_something_in_it_is_not_ours(tmp_path: Path, path: str) -> None:
    for place in range(8):
        kernels_in(tmp_path / f"gander-{place:016x}")
    strange = tmp_path / f"gander-{0:016x}" / path
    strange.parent.mkdir(exist_ok=True)
    if path == "link":
        strange = strange.with_name("complete-" + "0" * 16)
        strange.symlink_to(tmp_path)
    else:
        strange.write_bytes(b"a stranger's")
    for folder in tmp_path.iterdir():
        os.utime(folder, (0, 0))
    before = picture(strange.parents[path.count("/")])
    remove_old_folders(tmp_path, 10 * DAY)
    assert picture(tmp_path / f"gander-{0:016x}") == before
    assert len(list(tmp_path.iterdir())) in (NUM_KEPT, NUM_KEPT + 1)


@pytest.mark.parametrize("num_trees", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_byte_of_a_stranger_changes(tmp_path: Path, num_trees: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by opening a folder, nor by what is kept in it, nor when old ones go."""
    names = [*(f"gander-{place:016x}" for place in range(8)), *NUMBAS, *OURS, "a.nbi", "a.nbc", "tmpabcdefgh"]
    num_removed = 0
    monkeypatch.setattr(kernel_cache, "ROOM_BYTES", 4096)
    monkeypatch.setattr(kernel_cache, "NUM_KEPT", 1)
    for number in range(num_trees):
        root, random = tmp_path / str(number), Random(number)
        base = root / "home"
        base.mkdir(parents=True)
        plant(base, names, [b"x", b"gander", b"\x7f"], random)
        for place in (20, 21):
            kernels_in(base / f"gander-{place:016x}")
            os.utime(base / f"gander-{place:016x}", (0, 0))
        for path in base.glob("gander-*"):  # an empty folder of such a name is nobody's
            if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                (path / "x").write_bytes(b"a stranger's")
        before = {path: held for path, held in picture(root).items() if not is_kernels(path)}
        folder = base / f"gander-{random.randrange(8):016x}"
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        with contextlib.suppress(OSError):
            kernel_cache._open(folder)
            kernel_cache.note_complete()
            KeptMeasurements(folder).write("a model", ModelTimings(1, 0.1, []))
        remove_old_folders(base, time.time() + 30 * DAY)
        after = picture(root)
        assert lost(before, after) == {}, number
        num_removed += 2 - sum(is_kernels(str(path.relative_to(root))) for path in base.iterdir())
        shutil.rmtree(root)
    assert num_removed > num_trees / 2


def is_kernels(path: str) -> bool:
    return path.startswith((f"home/gander-{20:016x}", f"home/gander-{21:016x}"))
