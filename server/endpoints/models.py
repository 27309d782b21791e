"""GET /v1/models and /v1/models/{id}: the models of this server, each under all of its names, loaded or not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request

from server.endpoints.openapi import error_replies
from server.models.model import Model
from server.schemas.catalog import ModelCard, ModelList
from server.service import service_of

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request) -> ModelList:
    """The models clients may name."""
    is_anthropic = _is_anthropic(request)
    cards = [
        _card(model, name, is_anthropic) for model in service_of(request).models for name in model.settings.model_names
    ]
    listed = ModelList(object="list", data=cards)
    if is_anthropic:
        listed["has_more"], listed["first_id"], listed["last_id"] = False, cards[0]["id"], cards[-1]["id"]
    return listed


@router.get("/{model:path}", responses=error_replies(404))
async def get_model(model: str, request: Request) -> ModelCard:
    """One model by its id."""
    return _card(service_of(request).models.find(model), model, _is_anthropic(request))


def _is_anthropic(request: Request) -> bool:
    """Whether Anthropic's client asks: its header comes with each of its requests."""
    return "anthropic-version" in request.headers


def _card(model: Model, name: str, is_anthropic: bool) -> ModelCard:
    ready, folder = model.client.ready, Path(model.settings.model)
    card = ModelCard(
        id=name,
        object="model",
        created=model.created,
        owned_by="gander",
        root=folder.name if folder.is_file() else folder.resolve().name if folder.is_dir() else model.settings.model,
        parent=None,
        max_model_len=None if ready is None else ready.max_model_len,
        state=model.status.state,
    )
    if (modalities := model.input_modalities) is not None:
        card["input_modalities"] = modalities
    if ready is not None and ready.context_note is not None:
        card["model_context_len"], card["context_note"] = ready.model_context_len, ready.context_note
    if is_anthropic:
        card["type"], card["display_name"] = "model", name
        card["max_input_tokens"] = card["max_model_len"]
        card["created_at"] = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return card
