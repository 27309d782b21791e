"""The server that is attacked: how to reach it, what it says of itself, and what its processes hold."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

PATIENCE = 300.0  # seconds for any one answer


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process and its children hold. num_bytes: resident, of all of them."""

    num_bytes: int
    num_threads: int
    num_files: int
    num_processes: int


class Target:
    """url: of a server on this machine that takes this caller for an admin."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.url, self.host, self.port = url, parts.hostname, parts.port
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def close(self) -> None:
        self.http.close()

    def post(self, path: str, **body: Any) -> int:
        """The status of an answer that is read whole."""
        return self.http.post(path, json=body).status_code

    def complete(self, **body: Any) -> int:
        return self.post("/v1/completions", **body)

    def chat(self, text: str = "hi", **body: Any) -> int:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self.http.get("/health").json()
        return health

    def reply(self, seed: int) -> str:
        """The text of a stream that runs for a while, the same each time."""
        body = {"prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": True, "seed": seed, "stream": True}
        text = ""
        with self.http.stream("POST", "/v1/completions", json=body) as frames:
            for line in frames.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        return text

    @contextmanager
    def connections(self, count: int) -> Iterator[list[socket.socket]]:
        """So many connections of which the server need not read."""
        with ExitStack() as stack:
            opened = []
            for _ in range(count):
                connection = stack.enter_context(socket.socket())
                connection.settimeout(PATIENCE)
                connection.connect((self.host, self.port))
                opened.append(connection)
            yield opened

    def send(self, data: bytes, patience: float = PATIENCE) -> int:
        """The status that these bytes get; 0 where the connection ends, or `patience` seconds do, without an answer."""
        with self.connections(1) as (connection,):
            try:
                connection.sendall(data)
                connection.settimeout(patience)
                answer = connection.recv(4096)
            except OSError:
                return 0
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def post_of(path: str, body: Mapping[str, object] | bytes) -> bytes:
    """The bytes of a request."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def footprint(pid: int) -> Footprint:
    """Of a process and all that came from it."""
    num_bytes = num_threads = num_files = num_processes = 0
    waiting = [pid]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            num_bytes += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            threads = list((process / "task").iterdir())
            num_files += len(list((process / "fd").iterdir()))
            waiting += [int(child) for thread in threads for child in (thread / "children").read_text().split()]
        except OSError:
            continue  # it has just ended
        num_threads += len(threads)
        num_processes += 1
    return Footprint(num_bytes, num_threads, num_files, num_processes)
