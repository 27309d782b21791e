"""Processes that end together, whatever they are at."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import subprocess, sys, time
from decoding.process.parent import end_with_any

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
end_with_any([child.pid])
print("watching", flush=True)
sys.stdin.readline()
child.kill()
time.sleep(600)
"""


def test_a_process_ends_with_its_child_while_it_waits_for_something_else() -> None:
    parts = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(parts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        assert process.poll() is None
        process.communicate("now\n", timeout=60)
        assert process.returncode == 1
