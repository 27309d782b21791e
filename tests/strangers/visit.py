"""`python visit.py SERVER...`: start a server, ask it for one completion, stop it, and tell as JSON what happened.

Runs on a stranger's machine, as its first process and by the standard library alone, so that whatever is left of the
server is seen. Invariant: it ends, whatever the server does.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

PATIENCE = 240.0  # seconds; far more than anything here takes
BODY = {"prompt": "def fibonacci(n):", "max_tokens": 8}


def visit(command: list[str]) -> dict[str, object]:
    """status: of the server's end. left: commands of processes that outlived it. port: whether it is free again."""
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout is not None
    said: list[str] = []
    port, text = 0, ""
    signal.signal(signal.SIGALRM, lambda *_: server.kill())
    signal.alarm(int(PATIENCE))  # what follows reads until the server ends, at the latest
    try:
        for line in server.stdout:
            said.append(line.decode("utf-8", "replace").rstrip())
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/ready", said[-1]):
                port = int(found[1])
            if said[-1].startswith("ready ") and port:
                text = _completion(port)
                server.send_signal(signal.SIGINT)
        status = server.wait()
    finally:
        server.kill()
    return {"status": status, "text": text, "said": said, "left": _left(), "is_port_free": _is_free(port)}


def _completion(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/completions", json.dumps(BODY), {"Content-Type": "application/json"})
    reply = connection.getresponse().read()
    connection.close()
    return str(json.loads(reply)["choices"][0]["text"])


def _left() -> list[str]:
    """The commands of all other processes that see this one as the first of their machine, and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) != os.getpid() == 1:
            command = (folder / "cmdline").read_text().replace("\0", " ")
            if command:  # it is empty where a process has ended, and is about to or waits for its parent
                found.append(command)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as asker:
        return asker.connect_ex(("127.0.0.1", port)) != 0


if __name__ == "__main__":
    print(json.dumps(visit(sys.argv[1:])))  # noqa: T201
