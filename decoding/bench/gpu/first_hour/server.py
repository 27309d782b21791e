"""The server itself over HTTP with the bundled model: replies drafted and plain, tokens a second of many streams."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.record import Record
from decoding.config import BUNDLED_MODEL
from decoding.training.texts.corpus import SKILLS
from decoding.training.texts.prompts import held_out_prompts

STREAMS = (1, 8, 32, 64)
METHODS = ("none", "auto", "spine")
PROMPT_SEED = 1
PATIENCE = 60.0  # seconds that a request may take
PROGRAM = "from server.entry import main; main()"


def measure(bench: Bench, record: Record) -> None:
    if find_spec("fastapi") is None:
        record.write("server", 0.0, {"left_out": "fastapi is not installed"})
        return
    started = time.perf_counter()
    with _running(bench) as url:
        record.write("start", time.perf_counter() - started, {})
        record.measure("health", lambda: _health(url))
        record.measure("same tokens", lambda: same_tokens(bench, url))
        for streams in STREAMS[: bench.count(len(STREAMS))]:
            record.measure(f"{streams} streams", partial(load, bench, url, streams))


def prompts(count: int) -> list[str]:
    """Of all skills in turn."""
    of_skills = [held_out_prompts(skill, -(-count // len(SKILLS)), PROMPT_SEED) for skill in SKILLS]
    return [text for turn in zip(*of_skills, strict=True) for text in turn][:count]


def same_tokens(bench: Bench, url: str) -> dict[str, Any]:
    """How many replies of each method are the plain ones, greedy and sampled."""
    found = {}
    for temperature in (0.0, 0.7):
        plain: list[str] = []
        for method in METHODS:
            asked = [
                _body(text, method, bench, temperature, seed) for seed, text in enumerate(prompts(bench.count(6, 2)))
            ]
            texts = [_reply(url, body)["choices"][0]["text"] for body in asked]
            plain = plain or texts
            same = sum(one == other for one, other in zip(plain, texts, strict=True))
            found[f"{method}, T = {temperature}"] = {"same": same, "of": len(plain)}
    return found


def load(bench: Bench, url: str, streams: int) -> dict[str, Any]:
    """Tokens a second of so many requests at once, plain and by the default, and the acceptance length."""
    found = {}
    texts = prompts(2 * streams)
    for method, own in (("none", texts[:streams]), ("auto", texts[streams:])):
        bodies = [_body(text, method, bench, 0.0, 0) for text in own]
        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            replies = list(pool.map(lambda body: _reply(url, body), bodies))
        seconds = time.perf_counter() - started
        lengths = [reply["choices"][0]["speculation"]["acceptance_length"] for reply in replies]
        tokens = sum(reply["usage"]["completion_tokens"] for reply in replies)
        found[method] = {"tokens_a_second": tokens / seconds, "acceptance_length": median(lengths)}
    return found


def _body(text: str, method: str, bench: Bench, temperature: float, seed: int) -> dict[str, Any]:
    return {
        "model": BUNDLED_MODEL,
        "prompt": text,
        "max_tokens": bench.count(128, 8),
        "temperature": temperature,
        "seed": seed,
        "speculation": {"method": method, "report": True},
    }


def _reply(url: str, body: dict[str, Any]) -> dict[str, Any]:
    content = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), content)
    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def _health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


@contextmanager
def _running(bench: Bench) -> Iterator[str]:
    """The address of a server that is ready. Raises RuntimeError where it ends instead."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--threads", "1", "--kv-slots", "4096"] if bench.is_small else []
    command: Sequence[str] = [
        *(sys.executable, "-c", PROGRAM, "serve", BUNDLED_MODEL, "--device", str(bench.device), "--port", str(port)),
        *options,
    ]
    url, process = f"http://127.0.0.1:{port}", subprocess.Popen(command)
    try:
        while not _is_ready(url):  # for as long as the stage may take
            if process.poll() is not None:
                raise RuntimeError(f"the server has ended with status {process.poll()}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
