"""What the machine allows is the least of all that limits the process, wherever that is written down."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from decoding.process.machine import (
    Cores,
    address_bytes,
    cores,
    limit_addresses,
    limit_pools,
    memory_left,
    resident_bytes,
)

GIB = 2**30
FREE = 8 * GIB
OWN = "0::/user.slice/gander.service\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB free whose process is in no control group."""
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {FREE // 1024} kB\n"})
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def group(place: str, **files: str) -> dict[str, str]:
    """The files of a control group; in their names `_` stands for a dot after the controller."""
    return {f"sys/fs/cgroup{place}/{name.replace('_', '.', 1)}": text for name, text in files.items()}


def test_without_control_groups_what_is_available_is_left(root: Path) -> None:
    assert memory_left(root) == FREE
    write(root, {"proc/self/cgroup": OWN} | group("", memory_stat="") | group("/user.slice", memory_max="max\n"))
    assert memory_left(root) == FREE, "no limit"


@pytest.mark.parametrize("place", ["", "/user.slice", "/user.slice/gander.service"])
@pytest.mark.parametrize("limit", ["max", "high"])
def test_every_group_from_the_process_up_to_the_root_limits_it(root: Path, place: str, limit: str) -> None:
    write(root, {"proc/self/cgroup": OWN} | group("/user.slice/gander.service", memory_max="max"))
    stat = f"anon 5\ninactive_file {GIB // 4}\n"
    write(root, group(place, memory_current=str(GIB // 2), memory_stat=stat, **{f"memory_{limit}": f"{2 * GIB}\n"}))
    assert memory_left(root) == 2 * GIB - GIB // 4, "the page cache's quarter is given back on demand"


@pytest.mark.parametrize("place", ["/memory", "/memory/docker", "/memory/docker/abc"])
def test_groups_of_the_first_version_count_as_well(root: Path, place: str) -> None:
    write(root, {"proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/docker/abc\n0::/\n"})
    write(root, group("/memory/docker/abc", memory_limit_in_bytes=str(2**63 - 4096), memory_usage_in_bytes="5"))
    write(root, group(place, memory_limit_in_bytes=str(GIB), memory_usage_in_bytes=str(GIB // 8)))
    assert memory_left(root) == GIB - GIB // 8


@pytest.mark.parametrize("path", ["/kubepods/pod1/abc", "/../../elsewhere", "/", ""])
def test_in_a_container_that_shows_its_own_part_of_the_tree_that_part_counts(root: Path, path: str) -> None:
    write(root, {"proc/self/cgroup": f"0::{path}\n"} | group("", memory_max=str(GIB), memory_current="0"))
    assert memory_left(root) == GIB
    write(root, {"proc/self/cgroup": "0::/docker/abc/inner\n"} | group("/inner", memory_max="77", memory_current="7"))
    assert memory_left(root) == 70, "a container that made a group in its part"


@pytest.mark.parametrize("garbage", ["", "max", "-1", "1e9", "\xff\xfe", "12 lots", "lots\nof\nlines"])
def test_what_makes_no_sense_is_passed_over(root: Path, garbage: str) -> None:
    write(root, {"proc/self/cgroup": garbage} | group("", memory_max=garbage, memory_current=garbage, cpu_max=garbage))
    write(root, group("/cpu", cpu_cfs_quota_us=garbage, cpu_cfs_period_us=garbage))
    assert memory_left(root) == FREE
    assert cores(root) == cores(root / "nowhere")
    write(root, group("", memory_max=str(GIB), memory_stat=garbage))
    assert memory_left(root) == GIB, "what is used is not known"


def test_a_limit_below_what_is_used_leaves_nothing(root: Path) -> None:
    write(root, group("", memory_max="4096", memory_current=str(GIB)))
    assert memory_left(root) == 0


def test_what_nothing_tells_is_not_known(tmp_path: Path) -> None:
    assert memory_left(tmp_path) is None
    write(tmp_path, group("", memory_max="4096", memory_current="96"))
    assert memory_left(tmp_path) == 4000, "a limit is enough"


def test_a_file_that_cannot_be_read_is_passed_over(root: Path) -> None:
    (root / "sys/fs/cgroup/memory.max").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").mkdir()
    assert memory_left(root) == FREE
    assert cores(root).limit != "control group"


def test_an_address_space_that_is_limited_counts_as_memory(root: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_bytes() + GIB, before[1]))
    try:
        assert GIB // 2 < (memory_left(root) or 0) <= GIB
        limit_addresses(address_bytes() + 2 * GIB)
        assert GIB // 2 < (memory_left(root) or 0) <= GIB, "more than it has"
        limit_addresses(address_bytes() + GIB // 2)
        assert 0 < (memory_left(root) or 0) <= GIB // 2
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("50000 100000", 1), ("150000 100000", 2), ("200000 100000", 2), ("400000 100000", 4), ("1 100000", 1)],
)
@pytest.mark.parametrize("place", ["", "/user.slice", "/user.slice/gander.service"])
def test_a_quota_leaves_whole_cores(
    root: Path, quota: str, usable: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, 64, 64)
    write(root, {"proc/self/cgroup": OWN} | group("/user.slice/gander.service", cpu_max="max 100000"))
    write(root, group(place, cpu_max=f"{quota}\n"))
    assert cores(root) == Cores(usable, 64, "control group")
    assert str(cores(root)) == f"{usable} of 64 cores (control group)"


def test_a_quota_of_the_first_version_counts_as_well(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, 64, 64)
    write(root, {"proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n"})
    write(root, group("/cpu/docker/abc", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000"))
    assert cores(root) == Cores(64, 64, None)
    write(root, group("/cpu/docker", cpu_cfs_quota_us="350000", cpu_cfs_period_us="100000"))
    assert cores(root) == Cores(4, 64, "control group")


def test_affinity_counts_and_the_least_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, 64, 2)
    assert str(cores(root)) == "2 of 64 cores (affinity)"
    for quota, told in (("400000", "2 of 64 cores (affinity)"), ("50000", "1 of 64 cores (control group)")):
        write(root, group("", cpu_max=f"{quota} 100000"))
        assert str(cores(root)) == told
    on_machine(monkeypatch, 1, 1)
    assert str(cores(root / "nowhere")) == "1 core"


def test_pools_are_held_to_a_quota_and_otherwise_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"OMP_NUM_THREADS": "7"}
    on_machine(monkeypatch, 64, 64)
    monkeypatch.setattr("decoding.process.machine.cores", lambda: Cores(64, 64, None))
    limit_pools(environment)
    assert environment == {"OMP_NUM_THREADS": "7"}
    monkeypatch.setattr("decoding.process.machine.cores", lambda: Cores(2, 64, "control group"))
    limit_pools(environment)
    assert environment == {"OMP_NUM_THREADS": "7", "NUMBA_NUM_THREADS": "2", "RAYON_NUM_THREADS": "2"}


def test_this_machine_has_an_answer_to_everything() -> None:
    assert 1 <= cores().usable <= cores().present
    assert 0 < resident_bytes() < address_bytes()
    assert (memory_left() or 0) > 0


def on_machine(monkeypatch: pytest.MonkeyPatch, present: int, allowed: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: present)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(allowed)))
