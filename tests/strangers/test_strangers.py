"""On any Linux machine the server starts, answers and stops, and sizes itself by what it is allowed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decoding.kernels.cache import base_folder
from tests.strangers.machines import EACH, ROOT, RUNNING, TOGETHER, Machine

PATIENCE = 300.0
FOLDER = "/mnt"
NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts")
LOOPBACK_UP = """import fcntl, socket
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, b"lo".ljust(16, b"\\0") + b"A" + bytes(23))"""
GANDER = Path(sys.executable).with_name("gander")
VISIT = Path(__file__).with_name("visit.py")


def visited(machine: Machine) -> dict[str, Any]:
    """What `visit.py` tells of the server on that machine."""
    variables = {} if machine.alone else {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "LANG": "C.UTF-8"}
    variables |= {"NUMBA_CACHE_DIR": "$CACHE", **machine.variables}
    shown = [f'{name}="{value}"' for name, value in variables.items() if value is not None]
    become = f"setpriv --reuid {machine.uid} --regid {machine.uid} --clear-groups" if machine.uid else ""
    gander = f'{GANDER} serve --max-running {RUNNING} "{machine.model}"'
    script = "\n".join(
        [
            f"set -eu; mount -t tmpfs -o mode=755 none {FOLDER}",
            f"{sys.executable} -c '{LOOPBACK_UP}'",
            machine.setup,
            "echo prepared",
            f"exec env -i {' '.join(shown)} {become} {sys.executable} {VISIT} {gander}",
        ]
    )
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: machine.cores]))
    ran = subprocess.run(
        ["taskset", "-c", cores, "unshare", *NAMESPACES, "sh", "-c", script],
        env={"PATH": os.environ["PATH"], "T": FOLDER, "CACHE": str(base_folder(os.environ))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if not ran.stdout.startswith("prepared"):
        sentence = f"Such a machine cannot be made here: {ran.stderr.strip()}"
        pytest.fail(sentence) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def check(machine: Machine) -> None:
    found = visited(machine)
    said = "\n".join(found["said"])
    assert found["text"], said
    assert found["status"] == 0, said
    assert found["is_port_free"], said
    assert found["left"] == [], "processes that outlived the server"
    assert "Traceback" not in said
    for pattern in machine.says:
        assert re.search(pattern, said), said
    tokens = re.search(r"room for ([\d,]+) tokens", said)
    assert tokens is not None, said
    assert 0 < int(tokens[1].replace(",", "")) <= machine.most_tokens, said


@pytest.mark.parametrize("machine", TOGETHER, ids=lambda machine: machine.name)
def test_the_server_starts_answers_and_stops_where_much_is_unlike_here(machine: Machine) -> None:
    check(machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", EACH, ids=lambda machine: machine.name)
def test_the_server_starts_answers_and_stops_where_one_thing_is_unlike_here(machine: Machine) -> None:
    check(machine)


def test_every_machine_is_among_those_that_are_many_at_once() -> None:
    for machine in EACH:
        assert any(machine.name in each.name for each in TOGETHER), machine.name
