"""Ollama's paths about models: /api/tags, /api/show, /api/ps and /api/version; and those that would make models of
others, which this server refuses."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from decoding import __version__
from decoding.worker.messages import Ready
from server.endpoints.ollama.facts import ModelFacts, digest_of, facts_of
from server.endpoints.ollama.names import find_model, listed_name
from server.endpoints.ollama.serializer import timestamp
from server.endpoints.openapi import error_replies
from server.http.body import takes
from server.http.errors import ApiError
from server.models.model import Model
from server.prompts.encoding import FILL_IN_THE_MIDDLE
from server.prompts.served_model import ServedModel
from server.schemas.ollama.replies import (
    ListedModel,
    ModelDetails,
    ModelTags,
    OllamaError,
    OllamaVersion,
    RunningModel,
    RunningModels,
    ShownModel,
)
from server.schemas.ollama.requests import ShowRequest
from server.service import service_of

router = APIRouter(prefix="/api")

OLLAMA_VERSION = "0.13.0"  # whose API this is: clients ask for it, and refuse what is too old for them
NEVER = "9999-12-31T23:59:59Z"  # when a model is unloaded that stays
SIZES = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
# Entries of `model_info` after the family's name, by those of the configuration.
INFO = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
}


@router.get("/version")
async def version() -> OllamaVersion:
    """The version of Ollama whose API this is, and the server's own."""
    return {"version": OLLAMA_VERSION, "gander": __version__}


@router.get("/tags")
async def tags(request: Request) -> ModelTags:
    """The models there are."""
    listed = []
    for model in service_of(request).models:
        facts = await asyncio.to_thread(facts_of, model.settings)
        listed += [_listed(model, name, facts) for name in model.settings.model_names]
    return {"models": listed}


@router.get("/ps")
async def ps(request: Request) -> RunningModels:
    """The models that are loaded."""
    running = []
    for model in service_of(request).models:
        if (engine := model.client.ready) is not None:
            facts = await asyncio.to_thread(facts_of, model.settings)
            running += [_running(model, name, facts, engine) for name in model.settings.model_names]
    return {"models": running}


@router.post(
    "/show", responses=error_replies(400, 404, 413, 415, 503, model=OllamaError), openapi_extra=takes(ShowRequest)
)
async def show(request: Request) -> ShownModel:
    """What is known of a model; of one that is not loaded, what its files say."""
    service = service_of(request)
    body = await service.read(request, ShowRequest)
    model = find_model(service, body.model)
    facts, served = await asyncio.to_thread(facts_of, model.settings), model.served()
    template = None if served is None else served.chat_template
    return {
        "modelfile": f"FROM {Path(model.settings.model).name}",
        "parameters": "",
        "template": "" if template is None else template.source,
        "details": _details(facts, model.client.ready),
        "model_info": _info(facts, model.client.ready),
        "capabilities": ["completion"] if served is None else _capabilities(served),
        "modified_at": timestamp(facts.modified),
    }


@router.post("/push", include_in_schema=False)
@router.post("/create", include_in_schema=False)
@router.post("/copy", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
async def refuse(request: Request) -> None:
    """Raises ApiError: models are brought as they are."""
    message = f"This server has no {request.url.path}: it serves models as they are, and makes none."
    raise ApiError(501, message, None, "unsupported_endpoint")


def _listed(model: Model, name: str, facts: ModelFacts) -> ListedModel:
    named = listed_name(name)
    return {
        "name": named,
        "model": named,
        "modified_at": timestamp(facts.modified),
        "size": facts.num_bytes,
        "digest": digest_of(model.settings, facts),
        "details": _details(facts, model.client.ready),
    }


def _running(model: Model, name: str, facts: ModelFacts, engine: Ready) -> RunningModel:
    named, seconds = listed_name(name), model.residency.due - time.monotonic()
    return {
        "name": named,
        "model": named,
        "size": engine.expected_bytes,
        "digest": digest_of(model.settings, facts),
        "details": _details(facts, engine),
        "expires_at": NEVER if model.residency.due == math.inf else timestamp(time.time() + seconds),
        "size_vram": 0 if engine.device == "cpu" else engine.expected_bytes,
        "context_length": engine.max_model_len,
    }


def _details(facts: ModelFacts, engine: Ready | None) -> ModelDetails:
    """engine: None while the model loads, which leaves its size and its weights' form empty."""
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.family,
        "families": [facts.family] if facts.family else [],
        "parameter_size": "" if engine is None else _count(engine.parameters),
        "quantization_level": "" if engine is None else engine.weights.upper(),
    }


def _info(facts: ModelFacts, engine: Ready | None) -> dict[str, Any]:
    """Metadata under the names of GGUF files; of a model that is loaded the context's length is the one that is
    served."""
    family = facts.family or "model"
    info = {f"{family}.{INFO[name]}": value for name, value in facts.config.items() if name in INFO}
    info |= {"general.architecture": family}
    if engine is None:
        return info
    info |= {"general.parameter_count": engine.parameters}
    return info | {f"{family}.context_length": engine.max_model_len}


def _capabilities(model: ServedModel) -> list[str]:
    found, template = ["completion"], model.chat_template
    if template is not None:
        found.append("tools")
        if template.reply_format.thoughts or template.reply_format.template:
            found.append("thinking")
    if model.takes_pictures:
        found.append("vision")
    if any(all(model.tokenizer.id_of(name) is not None for name in names) for names in FILL_IN_THE_MIDDLE):
        found.append("insert")
    return found


def _count(number: int) -> str:
    """A number of parameters as people say it: 134.5M, 1.5B."""
    for size, letter in SIZES:
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)
