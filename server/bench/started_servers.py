"""`gander serve` as a process, for as long as a block lasts.

Owns the process and its log: when the block ends, however it ends, the process is gone.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from server.bench.errors import StartError

START_SECONDS = 900.0  # a large model's weights, and on a machine's first start the compiling
LEAVE_SECONDS = 40.0
POLL_SECONDS = 0.2
SHOWN_LOG = 4000  # characters
PROGRAM = "from server.cli import main; main()"


@contextmanager
def running_gander(flags: Sequence[str]) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1; its URL once it is ready."""
    port = free_port()
    command = (sys.executable, "-c", PROGRAM, "serve", "--log-level", "warning", *flags, "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/ready"):
        yield url


@contextmanager
def running(command: Sequence[str], ready_url: str) -> Iterator[None]:
    """Run `command` until the block ends, which begins when `ready_url` answers 200 and
    nothing is being compiled any more. Raises StartError."""
    with tempfile.TemporaryFile("w+") as log, _leaving_when_asked():
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _is_ready(process, ready_url):
                log.seek(0)
                raise StartError(f"The server did not become ready:\n{log.read()[-SHOWN_LOG:]}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _leaving_when_asked() -> Iterator[None]:
    """SIGTERM ends the block as ctrl-C does; by itself it would leave the process behind."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _is_compiling(said: bytes) -> bool:
    """Whether the drafting methods are still to come; a server with keys tells those alone who have one."""
    try:
        return bool(json.loads(said).get("compiling"))
    except (ValueError, AttributeError):  # another's server
        return False


def _is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200 and not _is_compiling(reply.read()):
                    return True
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
