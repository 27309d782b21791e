"""Servers for tests: the real application on a free port, in front of the scripted worker or the real one."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from openai import OpenAI
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from server.app import create_service
from server.config import ServerSettings
from server.engine_client.processes.restart_policy import RestartPolicy
from server.models.model import Model
from server.process.serving import http_config
from server.service import Service

FAKE_WORKER = (sys.executable, "-m", "tests.fake_worker")
FAST_RESTARTS = RestartPolicy(attempts=3, first_delay=0.05, longest_delay=0.2)
PATIENCE = 120.0  # seconds for what takes a moment where nobody else is at work
COMPILING = 600.0  # the same for the first start on a machine


def byte_tokenizer() -> Any:
    """Token id i is byte i, 256 the end token; a character may take four tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


CHAT_TEMPLATE = """{% for message in messages %}[{{ message.role }}]
{{ message.content }}
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %}"""


def make_model_folder(folder: Path, chat_template: str | None = CHAT_TEMPLATE, **fake: Any) -> Path:
    """A folder the server and the scripted worker take for a model; `fake` are the worker's options."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    (folder / "fake.json").write_text(json.dumps(fake))
    return folder


@dataclass(frozen=True)
class RunningServer:
    url: str
    service: Service
    http: httpx.Client
    clients: ExitStack

    @property
    def served(self) -> Model:
        """The default model."""
        return self.service.models.default

    @property
    def model(self) -> str:
        return self.served.name

    def client(self) -> OpenAI:
        client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        return self.clients.enter_context(client)

    def post(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=body)

    def chat(self, content: str, **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]} | body)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def wait_for(self, state: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The body of /health once its status is `state`."""
        return wait_until(lambda: body if (body := self.get("/health").json())["status"] == state else None, seconds)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def but_for_the_cache(usage: Any) -> dict[str, Any]:
    """What a call used, as far as calls before it make no difference. usage: a dictionary or the client's model."""
    counts: dict[str, Any] = usage if isinstance(usage, dict) else usage.model_dump()
    details = ("prompt_tokens_details", "input_tokens_details")
    return {name: value for name, value in counts.items() if name not in details}


def reply_of(response: httpx.Response) -> Any:
    """What a completion comes to, without what differs between equal ones: choices and usage; of a stream the text,
    the reasons and the log probabilities."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == "application/json":
        return response.json()["choices"], but_for_the_cache(response.json()["usage"])
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    choices: dict[int, tuple[str, list[Any], list[Any]]] = {}
    for frame in frames[:-2]:
        if frame.startswith(":"):  # a comment, which keeps the connection alive
            continue
        for choice in json.loads(frame.removeprefix("data: "))["choices"]:
            text, reasons, logprobs = choices.get(choice["index"], ("", [], []))
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            logprobs += list(zip(*choice["logprobs"].values(), strict=True)) if choice["logprobs"] else []
            choices[choice["index"]] = text + choice["text"], reasons, logprobs
    return choices


def wait_until(condition: Any, seconds: float = PATIENCE) -> Any:
    """Poll until `condition()` is true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


@contextmanager
def running_server(
    settings: ServerSettings,
    command: Sequence[str] = FAKE_WORKER,
    state: str = "ready",
    policy: RestartPolicy = FAST_RESTARTS,
    tracing: Any = None,
    models: Sequence[ServerSettings] = (),
) -> Iterator[RunningServer]:
    """Serve on a free port until the block ends; waits for `state` first. tracing: a TracerProvider. models: if
    there are several."""
    service = create_service(settings, command, policy, models)
    service.tracing = tracing or service.tracing
    server = uvicorn.Server(http_config(service))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=PATIENCE) as http, ExitStack() as clients:
        thread.start()
        try:
            running = RunningServer(url, service, http, clients)
            wait_until(lambda: server.started)
            if state:
                running.wait_for(state, COMPILING)
            if state == "ready":
                wait_until(lambda: not running.get("/health").json().get("compiling"), COMPILING)
            yield running
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
