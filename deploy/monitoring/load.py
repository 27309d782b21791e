"""Puts a bounded load on a running server through its HTTP API: several methods, every kind of reply, errors, and a
client that disconnects.

Knows nothing of metrics. Every reply's status is checked, so that a load that does not do what it should fails.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, islice
from typing import Any

import httpx

METHODS = ("auto", "spine", "dynamic", "stand", "none")
CLIENTS = 2
MAX_TOKENS, SAMPLE_TOKENS = 80, 16
PROMPTS = (
    "def add_{0}(a, b):\n    return a + b + {0}\n\ndef sub_{0}(a, b):\n    return a - b - {0}\n\ndef mul_{0}(a, b):\n",
    "Question: Tom has {0} apples and buys 7 more. How many apples does he have?\nAnswer:",
    "Once upon a time there was a fox who had {0} friends and lived near a river.",
)


@dataclass(frozen=True, slots=True)
class Error:
    """A call that must be refused, with its status and code. body: None, text, or a value that is sent as JSON."""

    method: str
    path: str
    body: Any
    status: int
    code: str


# One call for each error code that is easy to cause. SERVER_FLAGS: flags that the server needs for them.
ERRORS = (
    Error("POST", "/v1/completions", {"prompt": "a", "use_beam_search": True}, 400, "unsupported_parameter"),
    Error("POST", "/v1/completions", {"prompt": "a", "temperature": -1}, 400, "invalid_value"),
    Error("POST", "/v1/completions", {"prompt": "a", "max_tokens": "many"}, 400, "invalid_type"),
    Error("POST", "/v1/completions", {"prompt": ""}, 400, "empty_prompt"),
    Error("POST", "/v1/completions", {"prompt": "a", "model": "other"}, 404, "model_not_found"),
    Error("POST", "/v1/completions", {"prompt": "a" * 70000}, 413, "body_too_large"),
    Error("POST", "/v1/chat/completions", {}, 400, "missing_required_parameter"),
    Error("POST", "/v1/chat/completions", "no json", 400, "invalid_json"),
    Error("DELETE", "/v1/sessions/nobody", None, 404, "session_not_found"),
    Error("GET", "/v1/nowhere", None, 404, "not_found"),
    Error("GET", "/v1/completions", None, 405, "method_not_allowed"),
)
SERVER_FLAGS = ("--max-body-bytes", "65536")

Job = Callable[[httpx.Client], str]


def run_load(url: str, seconds: float) -> Counter[str]:
    """Send one request of each kind, then repeat until `seconds` are over. Returns what was sent."""
    asked: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=120) as client, ThreadPoolExecutor(CLIENTS) as pool:
        for number in count():
            deadline = end if number else math.inf
            if time.monotonic() >= deadline:
                break
            asked.update(pool.map(partial(_ask, client, deadline), [*_replies(number), *_errors(), _leave]))
    return asked


def _ask(client: httpx.Client, deadline: float, job: Job) -> str:
    return job(client) if time.monotonic() < deadline else "left out"


def _replies(number: int) -> Iterator[Job]:
    """Ask with every method, as completion and chat, whole and streamed, greedy and for four samples, some with a
    budget. number: the round's, from which its prompts are made."""
    prompts = cycle(prompt.format(number + 3) for prompt in PROMPTS)
    for kind in ("completion", "stream", "chat", "samples"):
        for method in METHODS:
            yield _reply(method, kind, next(prompts), 6 if (method, kind) == ("spine", "stream") else None)


def _reply(method: str, kind: str, prompt: str, max_nodes: int | None) -> Job:
    body: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0, "session_id": f"load-{method}"}
    body["speculation"] = {"method": method} | ({} if max_nodes is None else {"max_nodes": max_nodes})
    if kind == "chat":
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "/v1/completions", prompt
    if kind == "samples":
        body |= {"n": 4, "temperature": 0.8, "max_tokens": SAMPLE_TOKENS}
    if kind == "stream":
        body["stream"] = True

    def ask(client: httpx.Client) -> str:
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        return f"{method} {kind}"

    return ask


def _errors() -> Iterator[Job]:
    for error in ERRORS:
        yield partial(_fail, error)


def _fail(error: Error, client: httpx.Client) -> str:
    content = error.body if isinstance(error.body, str) else json.dumps(error.body)
    headers = {"Content-Type": "application/json"}
    response = client.request(error.method, error.path, content=content, headers=headers)
    said = (response.status_code, response.json()["error"]["code"])
    assert said == (error.status, error.code), (error, said)
    return f"error {error.code}"


def _leave(client: httpx.Client) -> str:
    """Read the first lines of a long stream, then close it."""
    body = {"prompt": PROMPTS[2], "max_tokens": 400, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert len(list(islice(response.iter_lines(), 3))) == 3
    return "client left"
