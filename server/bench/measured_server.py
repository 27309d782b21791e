"""A server under measurement: the requests that a benchmark sends to it, in OpenAI's API and a few paths beside it.

Knows nothing of clients or figures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

from server.bench.call import Call
from server.bench.connection import Address
from server.bench.errors import ServerError

RESIDENT_BYTES = "gander_worker_resident_bytes"


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """label: its name in tables; model: the model id in requests."""

    label: str
    address: Address
    model: str

    @classmethod
    async def find(cls, label: str, address: Address) -> MeasuredServer:
        """The server at this address, with the first model that it lists. Raises ServerError where it lists none."""
        listed = await _ask(address, "GET", "/v1/models")
        return cls(label, address, listed["data"][0]["id"])

    async def stream(self, call: Call, body: dict[str, Any]) -> None:
        """Fill `call` with the streamed reply to a chat's `messages` or a completion's `prompt`."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        body = body | {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        encoded = msgspec.json.encode(body)
        call.sent = time.perf_counter()
        try:
            call.finish(await self.address.exchange("POST", path, encoded, call.feed))
        except OSError as error:
            call.error = str(error)

    async def reply(self, body: dict[str, Any]) -> Any:
        """The whole reply to a chat. Raises ServerError where there is none."""
        return await _ask(self.address, "POST", "/v1/chat/completions", body | {"model": self.model})

    async def status(self) -> Any:
        """What `/ready` says. Raises ServerError where the server is not ready."""
        return await _ask(self.address, "GET", "/ready")

    async def version(self) -> str:
        version: str = (await _ask(self.address, "GET", "/version"))["version"]
        return version

    async def token_ids(self, text: str) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        ids: list[int] = (await _ask(self.address, "POST", "/tokenize", body))["tokens"]
        return ids

    async def text_of(self, token_ids: list[int]) -> str:
        text: str = (await _ask(self.address, "POST", "/detokenize", {"model": self.model, "tokens": token_ids}))[
            "prompt"
        ]
        return text

    async def resident_bytes(self) -> int | None:
        """Memory of the processes with the model; None where the server does not report it."""
        page = bytearray()
        try:
            status = await self.address.exchange("GET", "/metrics", b"", page.extend)
        except OSError:
            return None
        return read_gauge(page.decode(errors="replace"), RESIDENT_BYTES) if status == 200 else None


def read_gauge(page: str, name: str) -> int | None:
    """The value of a gauge without labels in Prometheus's text format; None where it is missing."""
    for line in page.splitlines():
        if line.startswith(f"{name} "):
            return int(float(line.split(" ")[1]))
    return None


async def _ask(address: Address, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    reply = bytearray()
    try:
        status = await address.exchange(method, path, msgspec.json.encode(body) if body else b"", reply.extend)
    except OSError as error:
        raise ServerError(f"{address.host}:{address.port} does not answer: {error}") from error
    if status != 200:
        raise ServerError(f"{method} {path} was answered {status}: {reply.decode(errors='replace')[:300]}")
    return msgspec.json.decode(reply)
