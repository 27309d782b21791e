"""Models by Ollama's names: one without a tag means the tag `latest`."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from server.models.model import Model
from server.prompts.served_model import ServedModel
from server.service import Service

LATEST = ":latest"


def find_model(service: Service, name: str) -> Model:
    """The model that a client calls `name`, loaded or not. Raises ApiError 404."""
    is_served = any(model.settings.serves(name) for model in service.models)
    return service.models.find(name if is_served else name.removesuffix(LATEST))


def listed_name(name: str) -> str:
    """The name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


async def require_model(
    request: Request, service: Service, name: str, keep_alive: float | None = None
) -> tuple[ServedModel, Model]:
    """The model, loaded, under the name that the client gave. keep_alive: seconds that it stays after the request.
    Raises ApiError 503 (it cannot be served now) or 404 (no such model)."""
    model = find_model(service, name)
    served = await service.require_model(request, model.name, keep_alive)
    return replace(served, name=name), model
