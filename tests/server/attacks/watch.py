"""Asks a server for /ready again and again while something else goes on, and tells the longest it had to wait.

In a process of its own, so that the attacker's work delays no question: `python -m tests.server.attacks.watch HOST
PORT` asks until its input ends, then prints the longest wait in seconds.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

PAUSE = 0.01  # seconds between two questions
ROOT = Path(__file__).parents[3]


class ReadyWatch:
    """Watches from entry to exit; then `longest` holds the longest wait in seconds."""

    def __init__(self, host: str, port: int) -> None:
        self._command = [sys.executable, "-m", "tests.server.attacks.watch", host, str(port)]
        self.longest = 0.0

    def __enter__(self) -> ReadyWatch:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "watching\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        told, _ = self._process.communicate()
        self.longest = float(told)


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    connection = http.client.HTTPConnection(host, port, timeout=120)
    longest = _wait(connection)
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    longest = 0.0
    while not ended.wait(PAUSE):
        longest = max(longest, _wait(connection))
    sys.stdout.write(f"{longest}\n")


def _wait(connection: http.client.HTTPConnection) -> float:
    began = time.perf_counter()
    connection.request("GET", "/ready")
    connection.getresponse().read()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
