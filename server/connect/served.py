"""What a running server says of itself, for the tools that are to use it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from server.connect.errors import ConnectError

SECONDS = 10.0
LOADING_SECONDS = 600.0  # that a model may take to be loaded


@dataclass(frozen=True, slots=True)
class Served:
    """url: without a slash at its end; context: tokens of prompt and reply together; key: what clients send, None where
    the server wants none."""

    url: str
    model: str
    context: int
    can_chat: bool
    key: str | None

    @property
    def sent_key(self) -> str:
        """What a tool that must send a key sends."""
        return self.key or "none"


def ask(url: str, key: str | None) -> Served:
    """Ask a server what it serves. Raises ConnectError where it does not answer, is not ready, or wants another key."""
    url = url.rstrip("/").removesuffix("/v1")
    if "://" not in url:
        url = f"http://{url}"
    status, health = _ask(f"{url}/health", key)
    if "engine" not in health and health.get("models") and health["status"] == "ready":
        _ask(f"{url}/tokenize", key, {"prompt": ""}, LOADING_SECONDS)  # which loads the default model
        status, health = _ask(f"{url}/health", key)
    engine = health.get("engine")
    if engine is None and "sentence" in health:
        raise ConnectError(f"The server at {url} is not ready: {health['sentence']}.")
    if status != 200 or "status" not in health:
        raise ConnectError(f"At {url} answers something that is no Gander.")
    listed, _ = _ask(f"{url}/v1/models", key)
    if listed == 401 or engine is None:
        which = "wants an API key: give --key or GANDER_API_KEY" if key is None else "does not know this API key"
        raise ConnectError(f"The server at {url} {which}.")
    return Served(url, engine["served_name"], engine["max_model_len"], engine["has_chat_template"], key)


def _ask(
    url: str, key: str | None, body: dict[str, Any] | None = None, seconds: float = SECONDS
) -> tuple[int, dict[str, Any]]:
    """The reply's status, and its body where that is an object. With a body it is a POST."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    headers |= {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=seconds) as reply:
            return reply.status, _read(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, _read(error.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConnectError(
            f"No server answers at {url} ({reason}). Start one with `gander serve`, or give --url."
        ) from None


def _read(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
