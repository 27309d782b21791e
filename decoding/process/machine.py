"""What the machine allows this process: memory, address space and cores. Standard library only.

The one reader of /proc, control groups, limits and affinity for that. A source that is missing, cannot be read or says
nothing that makes sense is passed over. Invariant: no question raises or changes anything.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")
MEMORY_FILES = (  # a control group's limit, and what counts against it; beyond `high` it is slowed until it gives back
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
POOLS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")  # which size torch, numba and tokenizers


class Cores(NamedTuple):
    """usable: that this process may keep busy, at least 1. present: in the machine. limit: what leaves fewer of them,
    None where nothing does."""

    usable: int
    present: int
    limit: str | None

    def __str__(self) -> str:
        if self.limit is None:
            return f"{self.usable} core{'s' * (self.usable > 1)}"
        return f"{self.usable} of {self.present} cores ({self.limit})"


def cores(root: Path = ROOT) -> Cores:
    """The cores that affinity and the quotas of control groups leave; a part of a core counts as one."""
    present = os.cpu_count() or 1
    allowed = _num_allowed()
    quota = min(_quotas(root), default=allowed)
    if quota < allowed:
        return Cores(quota, present, "control group")
    return Cores(allowed, present, "affinity" if allowed < present else None)


def limit_pools(environment: MutableMapping[str, str]) -> None:
    """Where a quota leaves fewer cores than libraries count, which see affinity alone, have those that are imported
    from now on, in this process and its children, make no more threads. Numbers that are set already stay."""
    usable = cores().usable
    if usable < _num_allowed():
        for name in POOLS:
            environment.setdefault(name, str(usable))


def memory_left(root: Path = ROOT) -> int | None:
    """The bytes that this process may still take: the least of what the machine has available, what the control groups
    that it is in leave, and what its address space leaves. None where no source says anything."""
    left = [*_available(root), *_left_by_groups(root), *_left_of_address_space()]
    return max(0, min(left)) if left else None


def resident_bytes() -> int:
    """The bytes of this process that are in memory now."""
    return _own_pages(1)


def address_bytes() -> int:
    """The bytes of this process's address space, which RLIMIT_AS limits."""
    return _own_pages(0)


def limit_addresses(most_bytes: int) -> None:
    """Hold the address space of this process to so many bytes from now on, unless it is held to fewer already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or most_bytes < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))


def _num_allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[int]:
    """Cores by the quota of each control group that the process is in, rounded up."""
    for folder in _groups("cpu", root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        pairs = ((quota, period), (_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")))
        for microseconds, of in pairs:
            if microseconds.isdecimal() and of.isdecimal() and int(of) > 0:
                yield max(1, -(-int(microseconds) // int(of)))


def _available(root: Path) -> Iterator[int]:
    kibibytes = _counts(root / "proc/meminfo").get("MemAvailable:")
    if kibibytes is not None:
        yield 1024 * kibibytes


def _left_by_groups(root: Path) -> Iterator[int]:
    """What each control group that the process is in leaves; pages that the kernel gives back on demand are free."""
    for folder in _groups("memory", root):
        counts = _counts(folder / "memory.stat")
        reclaimable = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        for most, usage in MEMORY_FILES:
            limit, used = _text(folder / most), _text(folder / usage)
            if limit.isdecimal():
                yield int(limit) - max(0, (int(used) if used.isdecimal() else 0) - reclaimable)


def _left_of_address_space() -> Iterator[int]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield most - address_bytes()


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the control groups of `controller` that the process is in: its own and all above, up to the root,
    in both versions. Where the file system shows a part of the tree only, as in containers, those of that part."""
    files = root / "sys/fs/cgroup"
    own = {files: PurePosixPath(), files / controller: PurePosixPath()}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if ".." not in path and (not controllers or controller in controllers.split(",")):
            own[files / controller if controllers else files] = PurePosixPath(path.lstrip("/"))
    for base, inner in own.items():
        shown = (PurePosixPath(*inner.parts[place:]) for place in range(len(inner.parts)))
        group = next((each for each in shown if (base / each).is_dir()), PurePosixPath())
        yield from (base / each for each in (group, *group.parents))


def _counts(path: Path) -> dict[str, int]:
    """The whole numbers of a file that has a name and a number on each line."""
    pairs = (line.split()[:2] for line in _text(path).splitlines())
    return {name: int(number) for name, number in (pair for pair in pairs if len(pair) == 2) if number.isdecimal()}


def _own_pages(place: int) -> int:
    numbers = _text(Path("/proc/self/statm")).split()
    return int(numbers[place]) * resource.getpagesize() if len(numbers) > place else 0


def _text(path: Path) -> str:
    """What a file says, nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
