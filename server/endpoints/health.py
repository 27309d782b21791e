"""GET /health, /ready, /version and /is_sleeping, for orchestrators and people. They answer at once, also while the
model loads."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from decoding import __version__
from server.engine_client.worker import Worker
from server.http.auth import caller_of
from server.http.keys import Caller
from server.schemas.catalog import HealthReply, SleepReply, VersionReply
from server.service import Service, service_of

router = APIRouter()


@router.get(
    "/health",
    response_model=HealthReply,
    responses={503: {"model": HealthReply, "description": "The engine has been given up; restart the server"}},
)
async def health(request: Request) -> JSONResponse:
    """200 unless the engine has been given up. The body says whether it loads, is ready, restarts or drains.

    Without a key the body has only this status; with one also the model that is served, and with an admin's key also
    the state of each worker.
    """
    body = _describe(service_of(request), caller_of(request))
    return JSONResponse(body, 503 if body["status"] == "failed" else 200)


@router.get(
    "/ready",
    response_model=HealthReply,
    responses={503: {"model": HealthReply, "description": "Loading, draining, or without a worker"}},
)
async def ready(request: Request) -> JSONResponse:
    """200 if a completion would be served now."""
    body = _describe(service_of(request), caller_of(request))
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


def _describe(service: Service, caller: Caller) -> dict[str, Any]:
    status = service.status
    body: dict[str, Any] = {"status": status.state}
    if not caller.is_known:
        return body
    body |= {"sentence": status.sentence, "fraction": status.fraction, "compiling": status.compiling}
    if caller.is_admin:
        body |= {"worker_pid": status.worker_pid, "restarts": status.restarts, "last_error": status.last_error}
        body["open_requests"] = service.client.num_open
        body["workers"] = [_describe_worker(worker) for worker in service.client.workers]
    engine = service.client.ready
    if engine is not None:
        body["engine"] = {
            "model": engine.model,
            "served_name": service.settings.model_name,
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
            "has_chat_template": service.chat_template is not None,
            "load_seconds": engine.load_seconds,
        }
        if not engine.is_exact:
            body["engine"]["exact_rows"] = engine.exact_rows
        if engine.context_note is not None:
            body["engine"] |= {"model_context_len": engine.model_context_len, "context_note": engine.context_note}
    return body
