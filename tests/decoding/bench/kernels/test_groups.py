"""Each group of kernels is reported as it is compiled, with what it took."""

import sys
from pathlib import Path

import pytest

from decoding.bench.kernels.groups import compiled

PROGRAM = """#!/bin/sh
shift 4
for group in "$@"; do
    number=0
    while [ $number -lt 20000 ]; do number=$((number + 1)); done
    ls "$NUMBA_CACHE_DIR"
    echo $group
done
"""


def test_each_group_has_its_own_seconds_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "python"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    found = list(compiled(["attention", "auto"]))
    assert [group for group, _ in found] == ["attention", "auto"]
    assert all(seconds >= 0 for _, seconds in found)
    assert sum(seconds for _, seconds in found) > 0
