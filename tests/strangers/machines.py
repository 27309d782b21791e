"""Strangers' machines: what is unlike here, each as shell commands that bring it about in namespaces of its own.

In the commands `$T` is a folder that goes with the machine and that anyone may enter, and `$CACHE` that of the compiled
kernels. Files of control groups are written by hand into a file system that hides the real ones, where the process
looks for its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNNING, ALL_TOKENS = 24, 49_152  # requests at a time, and what the bundled model's cache then has room for
USED = 2**30
HIDE = "[ -e /sys/fs/cgroup/ours ] || { mount -t tmpfs none /sys/fs/cgroup; touch /sys/fs/cgroup/ours; }"
# A group of version 2 to be in; where none may be made, the process stays in the one that it is in.
JOIN = """mkdir $T/groups
mount -t cgroup2 none $T/groups && mkdir -p $T/groups/gander/stranger &&
    echo $$ > $T/groups/gander/stranger/cgroup.procs || true"""
OWN = 'own=/sys/fs/cgroup$(sed -n "s/^0:://p" /proc/self/cgroup); mkdir -p $own'
OWN_1 = 'own=/sys/fs/cgroup/{0}$(sed -nE "s/^[0-9]+:(.*,)?{0}(,.*)?:(.*)/\\3/p" /proc/self/cgroup); mkdir -p $own'


@dataclass(frozen=True)
class Machine:
    """setup: commands before the server starts, as root. variables: of the environment; None takes one away. alone:
    whether there are no others. cores: that the process may use. uid: of who runs the server. says: what the server
    must say, as regular expressions. most_tokens: that its cache may have room for."""

    name: str
    setup: str = ""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    alone: bool = False
    cores: int | None = None
    uid: int = 0
    model: str = "gosling"
    says: tuple[str, ...] = ()
    most_tokens: int = ALL_TOKENS

    def __add__(self, other: Machine) -> Machine:
        return Machine(
            f"{self.name}, {other.name}",
            f"{self.setup}\n{other.setup}",
            {**self.variables, **other.variables},
            self.alone or other.alone,
            self.cores or other.cores,
            self.uid or other.uid,
            max(self.model, other.model, key=len),
            self.says + other.says,
            min(self.most_tokens, other.most_tokens),
        )


def limited(place: str, folder: str) -> Machine:
    """Groups of version 2, of which one leaves little memory."""
    files = {"max": USED + 128 * 2**20, "current": USED, "stat": "inactive_file 4096"}
    limit = "\n".join(f"echo {text} > {folder}/memory.{name}" for name, text in files.items())
    setup = f"{JOIN}\n{HIDE}\n{OWN}\necho max > $own/memory.max\n{limit}"
    return Machine(f"version 2 with a limit {place}", setup, most_tokens=ALL_TOKENS - 1)


def quota(share: float, says: str) -> Machine:
    setup = f"{HIDE}\necho {int(share * 100_000)} 100000 > /sys/fs/cgroup/cpu.max"
    return Machine(f"quota of {share:g}", setup, cores=2, says=(says,))


def open_to_all(path: Path) -> str:
    """Commands that show a folder to every user, though only its owner may enter one of those above it."""
    closed = [each for each in path.parents if not each.stat().st_mode & 0o001]
    if not closed:
        return ""
    return f"""mkdir $T/{path.name}; mount --bind {path} $T/{path.name}
mount -t tmpfs -o mode=755 none {closed[-1]}
mkdir -p {path}; mount --bind $T/{path.name} {path}"""


ONE, TWO = r"with 1 (core|of \d+ cores \(.*\)),", r"with 2 (cores|of \d+ cores \(affinity\)),"
NO_GROUPS = Machine("no control groups", HIDE)
NO_LIMITS = Machine(
    "version 2 without limits", f"{HIDE}\n{OWN}\necho max > $own/memory.max; echo max 100000 > $own/cpu.max"
)
LIMIT_OF_ROOT = limited("at the root", "/sys/fs/cgroup")
LIMIT_OF_PARENT = limited("in a parent", "$(dirname $own)")
LIMIT_OF_OWN = limited("in the process's own group", "$own")
VERSION_1 = Machine(
    "version 1",
    f"{HIDE}\n{OWN_1.format('memory')}\n"
    f"echo {USED + 128 * 2**20} > $own/memory.limit_in_bytes; echo {USED} > $own/memory.usage_in_bytes\n"
    f"{OWN_1.format('cpu')}\necho 50000 > $own/cpu.cfs_quota_us; echo 100000 > $own/cpu.cfs_period_us",
    says=(ONE,),
    most_tokens=ALL_TOKENS - 1,
)
QUOTAS = quota(0.5, ONE), quota(1.5, TWO), quota(4, TWO)
ONE_CORE = Machine("one core", cores=1, says=(ONE,))
ADDRESSES = Machine("12 GiB of addresses", f"ulimit -v {12 * 2**20}")
SMALL_SHM = Machine("64 MB of shared memory", "mount -t tmpfs -o size=64m none /dev/shm")
CLOSED_SHM = Machine("shared memory that is read-only", "mount -t tmpfs -o ro none /dev/shm")
FEW_FILES = Machine("256 open files", "ulimit -n 256")
UMASK = Machine("a umask of 077", "umask 077")
NO_HOME = Machine("no home", variables={"HOME": None})
CLOSED_HOME = Machine(
    "a home and a cache that cannot be written",
    "mkdir $T/home; mount -t tmpfs -o ro none $T/home; mount --bind $CACHE $CACHE; mount -o remount,bind,ro $CACHE",
    {"HOME": "$T/home"},
)
FULL_DISK = Machine(
    "a full disk",
    "mkdir $T/full; mount -t tmpfs none $T/full; cp -a $CACHE $T/full/cache\n"
    "mount -o remount,size=$(($(du -sm $T/full | cut -f1) + 8))m $T/full\n"
    "! dd if=/dev/zero of=$T/full/rest bs=64k 2> /dev/null",
    {"HOME": "$T/full", "TMPDIR": "$T/full", "NUMBA_CACHE_DIR": "$T/full/cache"},
)
NOT_ROOT = Machine(
    "a user who is not root",
    "mkdir -p $T/own/tmp; cp -a $CACHE $T/own/cache; chown -R 4321:4321 $T/own\n"
    f"{open_to_all(Path(sys.base_prefix))}\n{open_to_all(ROOT)}",
    {"HOME": "$T/own", "TMPDIR": "$T/own/tmp", "NUMBA_CACHE_DIR": "$T/own/cache"},
    uid=4321,
)
STRANGE_PATHS = Machine(
    "paths with a space and a letter like é",
    f'mkdir "$T/à côté"; cp -r {ROOT}/decoding/gosling "$T/à côté/modèle"',
    {"HOME": "$T/à côté", "TMPDIR": "$T/à côté"},
    model="$T/à côté/modèle",
)
C_LOCALE = Machine("the C locale and no other variable", variables={"LC_ALL": "C"}, alone=True)
DEAD_PROXY = Machine(
    "a proxy that is dead", variables=dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
)
NO_IPV6 = Machine("no IPv6", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
LOST_NAME = Machine("a name that does not resolve", "echo nowhere.invalid > /proc/sys/kernel/hostname")

EACH = (
    *(NO_GROUPS, NO_LIMITS, LIMIT_OF_ROOT, LIMIT_OF_PARENT, LIMIT_OF_OWN, VERSION_1, *QUOTAS, ONE_CORE, ADDRESSES),
    *(SMALL_SHM, CLOSED_SHM, FEW_FILES, UMASK, NO_HOME, CLOSED_HOME, FULL_DISK, NOT_ROOT, STRANGE_PATHS, C_LOCALE),
    *(DEAD_PROXY, NO_IPV6, LOST_NAME),
)
# All of them in a few starts, each with what does not hide what another one has.
TOGETHER = (
    NO_GROUPS + NO_HOME + C_LOCALE + CLOSED_SHM,
    NO_LIMITS + SMALL_SHM + NO_IPV6 + LOST_NAME + ONE_CORE,
    LIMIT_OF_ROOT + FULL_DISK + DEAD_PROXY + QUOTAS[2],
    LIMIT_OF_PARENT + NOT_ROOT + QUOTAS[0],
    LIMIT_OF_OWN + STRANGE_PATHS + UMASK + QUOTAS[1] + ADDRESSES,
    VERSION_1 + CLOSED_HOME + FEW_FILES,
)
