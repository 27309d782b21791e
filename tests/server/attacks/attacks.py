"""What strangers send to a server. Each attack returns the statuses that it got.

An attack lasts seconds and asks for no more than anybody may. Those of `ON_PROCESSES` come from the machine itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.server.attacks.target import Target, post_of

Attack = Callable[[Target], Sequence[int]]

LONG = "the cat sat on a mat and "
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def at_once(count: int, work: Callable[[int], int]) -> list[int]:
    """The statuses of `count` requests that are sent together."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def pipelines(target: Target) -> Sequence[int]:
    """Ten connections that ask without end and read nothing."""
    with target.connections(10) as connections:
        for connection in connections:
            connection.setblocking(False)
        for _ in range(2000):
            for connection in connections:
                try:
                    connection.send(GET * 400)
                except BlockingIOError:
                    time.sleep(0.0005)
    return ()


def pipelined_posts(target: Target) -> Sequence[int]:
    """A hundred requests in one go, whose sender leaves before the first answer."""
    request = post_of("/v1/completions", {"prompt": LONG * 20, "max_tokens": 100})
    with target.connections(4) as connections:
        for connection in connections:
            connection.sendall(request * 100)
            connection.recv(10)
    return ()


def logprobs_of_many_choices(target: Target) -> Sequence[int]:
    return [target.complete(prompt="Once", n=64, max_tokens=40, ignore_eos=True, logprobs=20)]


def streamed_logprobs_of_many_choices(target: Target) -> Sequence[int]:
    return [target.complete(prompt="Once", n=64, max_tokens=40, ignore_eos=True, logprobs=20, stream=True)]


def top_logprobs_of_many_chats(target: Target) -> Sequence[int]:
    return [target.chat(n=64, max_tokens=40, logprobs=True, top_logprobs=20)]


def prompt_logprobs(target: Target) -> Sequence[int]:
    prompts = [LONG * 60] * 16
    return [
        target.complete(prompt=prompts, max_tokens=1, prompt_logprobs=20),
        target.complete(prompt=prompts, max_tokens=1, logprobs=20, echo=True),
    ]


def traces(target: Target) -> Sequence[int]:
    return [target.complete(prompt="Once", n=64, max_tokens=40, ignore_eos=True, speculation={"trace": "trees"})]


def more_logprobs_than_a_reply_may_tell(target: Target) -> Sequence[int]:
    return [target.complete(prompt="Once", n=128, max_tokens=2000, logprobs=20)]


def large_bodies_of_who_leaves(target: Target) -> Sequence[int]:
    """Forty bodies of 3 MB from one sender, who leaves; another's chat comes after them."""
    request = post_of("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab " * 1_000_000}]})
    with target.connections(40) as connections:
        for connection in connections:
            connection.sendall(request)
    return [target.chat(max_tokens=2)]


def long_prompts(target: Target) -> Sequence[int]:
    texts = ("a" * 3_000_000, " " * 3_000_000, "\u0301" * 1_000_000, "ab" * 1_500_000)
    return [target.complete(prompt=text, max_tokens=1) for text in texts]


def many_bad_prompts(target: Target) -> Sequence[int]:
    return [target.complete(prompt=["a" * 15_000] * 256, max_tokens=1)]


def nested_bodies(target: Target) -> Sequence[int]:
    bodies = (
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"prompt":' + b"9" * 100_000 + b"}",
    )
    return [target.send(post_of("/v1/completions", body)) for body in bodies]


def strange_json(target: Target) -> Sequence[int]:
    fields = (
        '"prompt": "\\ud800"',
        '"prompt": "a", "temperature": NaN',
        '"prompt": "a", "seed": 1e999',
        '"prompt": null',
    )
    return [target.send(post_of("/v1/completions", b"{%s}" % field.encode())) for field in fields]


def numbers(target: Target) -> Sequence[int]:
    return [
        target.complete(**{"prompt": "a", "max_tokens": 8, name: value})
        for name, value in (
            ("repetition_penalty", 1e-300),
            ("repetition_penalty", 1e300),
            ("repetition_penalty", 0.01),
            ("temperature", 1e-300),
            ("temperature", 100),
            ("top_p", 1e-300),
            ("min_p", 1e-300),
            ("frequency_penalty", -2),
            ("logit_bias", {"5": 100, "6": -100}),
            ("seed", -(2**63)),
            ("max_tokens", 10**18),
            ("top_k", 2**31),
        )
    ]


def stop_strings(target: Target) -> Sequence[int]:
    stops = ["a" * length for length in range(241, 257)]
    return [target.complete(prompt="a", n=32, max_tokens=60, ignore_eos=True, stop=stops, bad_words=["a" * 200] * 100)]


def grammars(target: Target) -> Sequence[int]:
    """Expressions and schemas that take the time or memory of whoever compiles them."""
    regexes = (
        "((a{1,1000}){1,1000}){1,1000}",
        "(a|a|a|a)*" * 50,
        "[" + "a-z" * 5000 + "]{500}",
        "(" * 3000 + ")" * 3000,
    )
    doubling: dict[str, object] = {"d0": {"type": "string"}}
    for depth in range(1, 30):
        deeper = {"$ref": f"#/$defs/d{depth - 1}"}
        doubling[f"d{depth}"] = {"type": "object", "properties": {"a": deeper, "b": deeper}, "required": ["a", "b"]}
    nested = {"$ref": "#/$defs/d29", "$defs": doubling}
    schemas = (nested, {"type": "string", "maxLength": 10**9}, {"enum": [f"{i:099}" for i in range(600)]})
    formats = [{"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in schemas]
    return [
        *at_once(
            len(regexes), lambda i: target.complete(prompt="a", max_tokens=8, structured_outputs={"regex": regexes[i]})
        ),
        *at_once(len(formats), lambda i: target.chat(max_tokens=8, response_format=formats[i])),
    ]


def tools(target: Target) -> Sequence[int]:
    """As many strict tools as one call may bring."""
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20)}}
    functions = [{"name": f"f{i}", "parameters": parameters, "strict": True} for i in range(128)]
    given = [{"type": "function", "function": function} for function in functions]
    return [target.chat(tools=given, tool_choice="required", max_tokens=8)]


def clients_templates(target: Target) -> Sequence[int]:
    """Refused where templates of requests are not allowed, and ended by the kernel where they are."""
    texts = ("{{ 9**(9**9) }}", "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}")
    return at_once(4, lambda i: target.chat(chat_template=texts[i % 2], max_tokens=4))


def predictions(target: Target) -> Sequence[int]:
    prediction = {"type": "content", "content": LONG * 100_000}
    return at_once(2, lambda _: target.chat(prediction=prediction, max_tokens=8))


def silent_connections(target: Target) -> Sequence[int]:
    with target.connections(400):
        return [target.complete(prompt="a", max_tokens=2)]


def slow_heads(target: Target) -> Sequence[int]:
    """Requests that come a byte at a time."""
    with target.connections(100) as connections:
        for place in range(len(POST)):
            for connection in connections:
                connection.sendall(POST[place : place + 1])
    return ()


def connections_without_end(target: Target) -> Sequence[int]:
    for _ in range(1000):
        with target.connections(1):
            pass
    return [target.complete(prompt="a", max_tokens=2)]


def garbage(target: Target) -> Sequence[int]:
    pieces = (
        b"\x16\x03\x01\x02\x00" * 100,
        b"GET " + b"a" * 1_000_000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000 + b"\r\n",
        b"\x00" * 1_000_000,
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        POST + b"Content-Length: 99999999999999\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
    )
    return [target.send(piece, patience=1.0) for piece in pieces]


def who_leaves_at_once(target: Target) -> Sequence[int]:
    """Streams of many choices whose reader is gone by the first token."""
    request = post_of("/v1/completions", {"prompt": "a", "n": 8, "max_tokens": 500, "ignore_eos": True, "stream": True})
    for _ in range(20):
        with target.connections(5) as connections:
            for connection in connections:
                connection.sendall(request)
            connections[0].recv(10)
    return [target.complete(prompt="a", max_tokens=2)]


def who_reads_nothing(target: Target) -> Sequence[int]:
    """Streams whose readers stay and read nothing."""
    body = {"prompt": "a", "n": 16, "max_tokens": 60, "ignore_eos": True, "logprobs": 5, "stream": True}
    with target.connections(4) as connections:
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(post_of("/v1/completions", body))
        return [target.complete(prompt="a", max_tokens=2)]


def more_than_can_wait(target: Target) -> Sequence[int]:
    """Far more requests than run at a time; some may be told to come again."""
    return at_once(60, lambda i: target.complete(prompt=f"{i}", n=32, max_tokens=4))


def sessions(target: Target) -> Sequence[int]:
    return at_once(
        16, lambda i: max(target.complete(prompt=f"{i}", max_tokens=2, session_id=f"{i}-{j}") for j in range(20))
    )


def session_bytes(target: Target) -> Sequence[int]:
    """Imports that are no session."""
    contents = (
        b"",
        b"\x00" * 1000,
        b'{"ngrams": []}',
        b'{"replies": []}',
        json.dumps({"ngrams": [1], "replies": [[10**30]]}).encode(),
        b"\x81\xa7ngrams\x90",
        b"GANDER" + b"\xff" * 4000,
    )
    answers = [target.http.put("/v1/sessions/crafted/export", content=content) for content in contents]
    return [
        *(answer.status_code for answer in answers),
        target.complete(prompt="a", max_tokens=2, session_id="crafted"),
    ]


def session_names(target: Target) -> Sequence[int]:
    names = ("../../etc/passwd", "a" * 5000, "%00", "..%2f..%2fa", "\u202e")
    paths = [f"/v1/sessions/{name}" for name in names]
    return [target.http.delete(httpx.URL(target.url + path)).status_code for path in paths]


def killed_worker(target: Target) -> Sequence[int]:
    """Killed hard; the attack lasts until another has taken its place."""
    restarts = target.health()["restarts"]
    os.kill(_worker(target), signal.SIGKILL)
    while (health := target.health())["restarts"] == restarts or health["status"] != "ready":
        time.sleep(0.05)
    return ()


def stopped_worker(target: Target) -> Sequence[int]:
    pid = _worker(target)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(pid, signal.SIGCONT)
    return ()


def _worker(target: Target) -> int:
    while (pid := target.health()["worker_pid"]) is None:
        time.sleep(0.05)
    return int(pid)


BY_CLIENTS: tuple[Attack, ...] = (
    pipelines,
    pipelined_posts,
    logprobs_of_many_choices,
    streamed_logprobs_of_many_choices,
    top_logprobs_of_many_chats,
    prompt_logprobs,
    traces,
    more_logprobs_than_a_reply_may_tell,
    large_bodies_of_who_leaves,
    long_prompts,
    many_bad_prompts,
    nested_bodies,
    strange_json,
    numbers,
    stop_strings,
    grammars,
    tools,
    clients_templates,
    predictions,
    silent_connections,
    slow_heads,
    connections_without_end,
    garbage,
    who_leaves_at_once,
    who_reads_nothing,
    more_than_can_wait,
    sessions,
    session_bytes,
    session_names,
)
ON_PROCESSES: tuple[Attack, ...] = (stopped_worker, killed_worker)
