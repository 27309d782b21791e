"""Runs `gander serve` as a process while a block runs.

Invariant: when the block ends, however it ends, the process is gone.
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

START_SECONDS = 900.0  # long, for a large model's weights and the compilation at a machine's first start
LEAVE_SECONDS = 40.0
POLL_SECONDS = 0.2
SHOWN_LOG = 4000  # characters
PROGRAM = "from server.cli import main; main()"


@contextmanager
def running_gander(flags: Sequence[str]) -> Iterator[str]:
    """Start `gander serve` on a free port of 127.0.0.1, and yield its URL once it is ready."""
    port = free_port()
    command = (sys.executable, "-c", PROGRAM, "serve", "--log-level", "warning", *flags, "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/ready"):
        yield url


@contextmanager
def running(command: Sequence[str], ready_url: str) -> Iterator[None]:
    """Run `command` until the block ends. The block begins when `ready_url` answers 200 and nothing is still being
    compiled. Raises StartError."""
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
    """Let SIGTERM end the block by an exception, as ctrl-C does; else it would leave the process behind."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _is_compiling(said: bytes) -> bool:
    """Whether drafting methods are still being compiled. A server with keys tells this only to those who send one."""
    try:
        return bool(json.loads(said).get("compiling"))
    except (ValueError, AttributeError):  # another kind of server
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
