"""Models by Ollama's names: one without a tag means the tag `latest`."""

from __future__ import annotations

from dataclasses import replace

from server.prompts.served_model import ServedModel
from server.service import Service

LATEST = ":latest"


def served_name(service: Service, name: str) -> str:
    """The name by which the server has the model that a client calls `name`."""
    return name if service.settings.serves(name) else name.removesuffix(LATEST)


def listed_name(name: str) -> str:
    """The name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def require_model(service: Service, name: str) -> ServedModel:
    """The model, under the name that the client gave. Raises ApiError 503 (not ready) or 404 (no such model)."""
    return replace(service.require_model(served_name(service, name)), name=name)
