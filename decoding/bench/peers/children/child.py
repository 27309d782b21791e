"""The process that a peer runs in: `python child.py ADAPTER`, JSON lines in, JSON lines out.

Standard library only, since the interpreter is the peer's and need not have this package. The adapter is a file with a
class `Peer`: made of the options, it has `version` and `draftings`, and `answer(task, on_token)`, which returns the
tokens and calls `on_token` when the first is known. Where GGUF files are compared it also has `nats(window)`.
Invariant: every line that comes in is answered with one line.
"""

import json
import os
import runpy
import sys
import time
import traceback
from typing import Any


def serve(adapter: str) -> None:
    """Load the peer by the first line, then answer the tasks of all others."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a peer prints goes to stderr

    def say(record: dict[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    options = json.loads(sys.stdin.readline())
    try:
        peer = runpy.run_path(adapter)["Peer"](options)
    except ImportError as error:
        say({"missing": str(error)})
        return
    except Exception as error:  # a peer may raise anything; the parent gets it as the answer
        say(_failure(error))
        return
    say({"version": peer.version, "draftings": list(peer.draftings)})
    for line in sys.stdin:
        try:
            task = json.loads(line)
            say({"nats": peer.nats(task["window"])} if "window" in task else _timed(peer, task))
        except Exception as error:
            say(_failure(error))


def _timed(peer: Any, task: dict[str, Any]) -> dict[str, Any]:
    first_times: list[float] = []

    def on_token() -> None:
        if not first_times:
            first_times.append(time.perf_counter())

    started, cpu_started = time.perf_counter(), time.process_time()
    tokens = peer.answer(task, on_token)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "tokens": [int(token) for token in tokens],
        "seconds": seconds,
        "first_seconds": first_times[0] - started,
        "cpu_seconds": cpu_seconds,
        "phase_seconds": getattr(peer, "phase_seconds", {}),
        "steps": getattr(peer, "steps", 0),
    }


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exc()
    lines = str(error).strip().splitlines() or [""]
    return {"error": f"{type(error).__name__}: {lines[0]}"}


if __name__ == "__main__":
    serve(sys.argv[1])
