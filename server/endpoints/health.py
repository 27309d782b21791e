"""GET /health, /ready, /version and /is_sleeping, for orchestrators and people. They answer at once, also while a
model loads."""

from __future__ import annotations

import math
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from decoding import __version__
from decoding.process.machine import memory_left
from server.endpoints.openapi import error_replies
from server.engine_client.status import EngineStatus
from server.engine_client.worker import Worker
from server.http.auth import caller_of
from server.http.keys import Caller
from server.models.model import Model
from server.schemas.catalog import HealthReply, ModelState, SleepReply, VersionReply
from server.service import Service, service_of

router = APIRouter()


@router.get(
    "/health",
    response_model=HealthReply,
    responses=error_replies(404)
    | {503: {"model": HealthReply, "description": "The engine has been given up; restart the server"}},
)
async def health(request: Request, model: str | None = None) -> JSONResponse:
    """200 unless the engine has been given up. The body says whether it loads, is ready, restarts or drains.

    Without a key the body has only this status; with one also what is served, and with an admin's key also the state of
    each worker. Of several models it tells the default one's, or that of `model`.
    """
    body = _describe(service_of(request), caller_of(request), model)
    return JSONResponse(body, 503 if body["status"] == "failed" else 200)


@router.get(
    "/ready",
    response_model=HealthReply,
    responses=error_replies(404)
    | {503: {"model": HealthReply, "description": "Loading, draining, or without a worker"}},
)
async def ready(request: Request, model: str | None = None) -> JSONResponse:
    """200 if a completion would be served now, be it that its model is loaded first; with `model` if that is loaded."""
    body = _describe(service_of(request), caller_of(request), model)
    if body["status"] == "ready":
        return JSONResponse(body)
    return JSONResponse(body, 503, {"Retry-After": "2"})


@router.get("/version")
async def version() -> VersionReply:
    """The server's own version."""
    return {"version": __version__}


@router.get("/is_sleeping")
async def is_sleeping() -> SleepReply:
    """Always false: vLLM's routers ask this, and this server never sleeps (gives up its memory while idle)."""
    return {"is_sleeping": False}


def _describe_worker(worker: Worker) -> dict[str, Any]:
    status = worker.status
    return {
        "status": status.state,
        "sentence": status.sentence,
        "worker_pid": status.worker_pid,
        "restarts": status.restarts,
        "last_error": status.last_error,
        "open_requests": len(worker.requests),
    }


def state_of(model: Model) -> ModelState:
    status, ready, due = model.status, model.client.ready, model.residency.due
    return ModelState(
        name=model.name,
        status=status.state,
        sentence=status.sentence,
        fraction=status.fraction,
        needed_bytes=model.needed_bytes,
        expected_bytes=None if ready is None else ready.expected_bytes,
        unload_seconds=max(0.0, due - time.monotonic()) if model.is_loaded and due < math.inf else None,
        num_uses=model.residency.num_uses,
    )


def _describe(service: Service, caller: Caller, name: str | None) -> dict[str, Any]:
    """name: of the model that is asked for, None for the server. Raises ApiError 404."""
    if name is not None and caller.is_known:
        model = service.models.find(name)
        return _described(model.status, model, caller)
    body = _described(service.status, service.models.default, caller)
    if caller.is_known:
        body["models"] = [state_of(model) for model in service.models]
        body["free_bytes"] = memory_left()
    return body


def _described(status: EngineStatus, model: Model, caller: Caller) -> dict[str, Any]:
    body: dict[str, Any] = {"status": status.state}
    if not caller.is_known:
        return body
    body |= {"sentence": status.sentence, "fraction": status.fraction, "compiling": status.compiling}
    if caller.is_admin:
        body |= {"worker_pid": status.worker_pid, "restarts": status.restarts, "last_error": status.last_error}
        body["open_requests"] = model.client.num_open
        body["workers"] = [_describe_worker(worker) for worker in model.client.workers]
    engine = model.client.ready
    if engine is not None:
        body["engine"] = {
            "model": engine.model,
            "served_name": model.name,
            "device": engine.device,
            "dtype": engine.dtype,
            "kv_dtype": engine.kv_dtype,
            "weights": engine.weights,
            "attention": engine.attention,
            "is_exact": engine.is_exact,
            "max_model_len": engine.max_model_len,
            "kv_slots": engine.kv_slots,
            "max_running": engine.max_running,
            "max_batch_rows": engine.max_batch_rows,
            "expected_bytes": engine.expected_bytes,
            "methods": engine.methods,
            "max_nodes": engine.max_nodes,
            "has_chat_template": model.chat_template is not None,
            "input_modalities": model.input_modalities,
            "load_seconds": engine.load_seconds,
        }
        if not engine.is_exact:
            body["engine"]["exact_rows"] = engine.exact_rows
        if engine.context_note is not None:
            body["engine"] |= {"model_context_len": engine.model_context_len, "context_note": engine.context_note}
    return body
