"""Makes the OpenAPI document: adds streams, request bodies, error replies and API keys to what FastAPI finds by itself.

Knows the wire models and no behaviour.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from server.http.sse import EVENTS, LINES
from server.schemas.anthropic import CountRequest, MessageRequest
from server.schemas.anthropic_replies import MessageEvent
from server.schemas.catalog import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from server.schemas.chat import ChatCompletionChunk, ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.ollama.replies import OllamaChatReply, OllamaGenerateReply
from server.schemas.ollama.requests import (
    EmbeddingsRequest,
    EmbedRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    ShowRequest,
)
from server.schemas.replies import ErrorReply
from server.schemas.response_replies import ResponseEvent
from server.schemas.responses import ResponseRequest

Replies = dict[int | str, dict[str, Any]]

STREAMED = EVENTS.media_type
LINES_STREAMED = LINES.media_type
STREAM_MODELS: tuple[Any, ...] = (
    ChatCompletionChunk,
    ResponseEvent,
    MessageEvent,
    OllamaChatReply,
    OllamaGenerateReply,
)
BODY_MODELS: tuple[Any, ...] = (
    ChatRequest,
    CompletionRequest,
    ResponseRequest,
    MessageRequest,
    CountRequest,
    TokenizeRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    EmbedRequest,
    EmbeddingsRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    ShowRequest,
)
DESCRIPTIONS = {
    400: "The request cannot be served as it is; `param` names the field at fault",
    401: "No valid API key",
    403: "The API key may not do this",
    404: "No such model, session or path",
    405: "The path has no such method",
    408: "The request took too long to come, or has waited too long for its turn",
    413: "The body is too large",
    415: "The body has a Content-Encoding that this server does not read",
    429: "Too many requests are waiting, or the key's limit is reached; Retry-After says when to come back",
    500: "The server had an error",
    504: "The request's own timeout is over",
    503: "The engine is loading, restarting or stopping; Retry-After says when to come back",
}
OPEN_PATHS = ("/health", "/ready", "/is_sleeping")


def error_replies(*statuses: int, model: Any = ErrorReply) -> Replies:
    """The document's entries for these error statuses. model: the shape of their bodies."""
    return {status: {"model": model, "description": DESCRIPTIONS[status]} for status in statuses}


def generation_replies(event_model: str, error_model: Any = ErrorReply, streamed: str = STREAMED) -> Replies:
    """The document's replies for an endpoint that answers in one piece, or as a stream of `event_model`. streamed: the
    stream's media type."""
    reference = {"$ref": f"#/components/schemas/{event_model}"}
    success: dict[str, Any] = {
        "description": "The reply; with `stream` true as a stream, each event or line of the shape given here",
        "content": {streamed: {"schema": reference}},
    }
    return {200: success, **error_replies(400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 504, model=error_model)}


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
        _add_models(made)
        _add_keys(made)
        app.openapi_schema = made
    return app.openapi_schema


def _add_models(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    for model in (*STREAM_MODELS, *BODY_MODELS):
        mode: Literal["serialization", "validation"] = "serialization" if model in STREAM_MODELS else "validation"
        schema = TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}", mode=mode)
        for name, definition in schema.pop("$defs", {}).items():
            schemas.setdefault(name, definition)
        schemas[schema["title"]] = schema


def _add_keys(made: dict[str, Any]) -> None:
    """Add bearer keys (optional, because a server without keys is open) and the x-request-id of every reply."""
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{"key": []}, {}]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
    header = {"x-request-id": {"schema": {"type": "string"}, "description": "The id the log has too"}}
    for path, operations in made["paths"].items():
        for operation in operations.values():
            replies = operation["responses"]
            replies.pop("422", None)
            if path not in OPEN_PATHS:
                replies.setdefault("401", {"description": DESCRIPTIONS[401], "content": error})
            for reply in replies.values():
                reply.setdefault("headers", {}).update(header)
