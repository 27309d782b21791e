"""How long `gander serve` takes to its first token, on a machine's first start and on its second.

    python -m tests.time_start [--rounds 3] [flags of gander serve]

Prints wall seconds, and at last the processor seconds of all processes of a start: on a busy machine they tell more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from typing import Any

from server.bench.started_servers import PROGRAM, free_port

POLL_SECONDS = 0.1
BODY = {"prompt": "def fibonacci(n):\n", "max_tokens": 1, "temperature": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments, flags = parser.parse_known_args()
    _say("start", "port open", "ready", "first token", "all compiled", "processor")
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("first", "second"):
                _say(name, *_start(folder, flags))


def _start(folder: str, flags: list[str]) -> list[float]:
    """Seconds to each of the columns, with the kernels in `folder`."""
    url, used = f"http://127.0.0.1:{(port := free_port())}", _processor_seconds()
    command = [sys.executable, "-c", PROGRAM, "serve", "--log-level", "warning", *flags, "--port", str(port)]
    started = time.perf_counter()
    server = subprocess.Popen(command, env=os.environ | {"NUMBA_CACHE_DIR": folder}, stderr=subprocess.DEVNULL)
    try:
        seconds = []
        for is_so in (
            lambda: _health(url),
            lambda: _health(url).get("status") == "ready",
            lambda: _ask(f"{url}/v1/completions", BODY),
            lambda: not _health(url).get("compiling"),
        ):
            while not is_so():
                if server.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(POLL_SECONDS)
            seconds.append(time.perf_counter() - started)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return [*seconds, _processor_seconds() - used]


def _health(url: str) -> dict[str, Any]:
    """Nothing where nobody answers."""
    with suppress(OSError):
        return _ask(f"{url}/health")
    return {}


def _ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def _processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _say(name: str, *columns: str | float) -> None:
    shown = (f"{each:12.1f}" if isinstance(each, float) else f"{each:>12}" for each in columns)
    sys.stdout.write(f"{name:<8}{''.join(shown)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
