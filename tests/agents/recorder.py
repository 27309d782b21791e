"""Stands between an agent and the server, and keeps what the agent asks. It changes nothing."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.server.servers import PATIENCE

OF_ONE_HOP = ("host", "connection", "accept-encoding", "transfer-encoding", "content-length")


@dataclass(frozen=True)
class Recorded:
    """One request: body is None where it had no JSON. answer: the whole reply."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int
    answer: str


@contextmanager
def recorder(upstream: str) -> Iterator[tuple[str, list[Recorded]]]:
    """The address to send requests for `upstream` to, and the growing list of them."""
    recorded: list[Recorded] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=PATIENCE)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_ONE_HOP}
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in OF_ONE_HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            pieces = []
            while piece := reply.read1(65536):
                pieces.append(piece)
                self.wfile.write(piece)
            connection.close()
            self.close_connection = True
            asked, answer = _json(body), b"".join(pieces).decode()
            recorded.append(Recorded(self.command, self.path, dict(self.headers), asked, reply.status, answer))

        do_GET = do_HEAD = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", recorded
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
