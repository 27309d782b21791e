"""A server withstands every attack, and is afterwards what it was."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.attacks.assault import assaults
from tests.server.attacks.attacks import BY_CLIENTS, ON_PROCESSES
from tests.server.attacks.target import Footprint, Target, footprint
from tests.server.servers import COMPILING, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SERVE = "import sys; from server.cli import main; main()"
OPTIONS = ("--port", "0", "--threads", "1", "--kv-slots", "16384", "--trust-request-chat-template")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Target]]:
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", "gosling", *OPTIONS], stdout=file, stderr=file, cwd=ROOT
        )
    try:
        found = wait_until(lambda: re.search(r"(http://127\.0\.0\.1:\d+)/ready", output.read_text()), COMPILING)
        target = Target(found[1])
        wait_until(lambda: target.http.get("/ready").status_code == 200, COMPILING)
        wait_until(lambda: not target.health()["compiling"], COMPILING)
        yield process, target
        target.close()
    finally:
        process.kill()
        process.wait()


def test_all_attacks_are_withstood_and_leave_nothing_behind(server: tuple[subprocess.Popen[bytes], Target]) -> None:
    """Attacks of clients come twice: what the first round leaves (caches that have filled) is there to stay, and the
    second may add nothing to it."""
    process, target = server
    before = Footprint(0, 0, 0, 0)
    for number in range(2):
        for outcome in assaults(target, BY_CLIENTS):
            assert outcome.is_withstood, outcome
        if number == 0:
            before = footprint(process.pid)
    wait_until(lambda: is_within(footprint(process.pid), before))
    for outcome in assaults(target, ON_PROCESSES):
        assert outcome.is_withstood, outcome
    wait_until(lambda: is_within(footprint(process.pid), before))


POOLS = 8  # threads that pools of a fixed size may start at any time


def is_within(now: Footprint, before: Footprint) -> bool:
    """Whether the processes hold what they held, and a tenth more of memory at most."""
    return (
        now.num_bytes <= 1.1 * before.num_bytes
        and now.num_threads <= before.num_threads + POOLS
        and now.num_files <= before.num_files
        and now.num_processes <= before.num_processes
    )
