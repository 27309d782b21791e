"""Every error a client can get, in OpenAI's shape: {"error": {message, type, param, code}}. Below /v1/messages it has
Anthropic's shape: other types, and "type": "error" beside it. Below /api it has Ollama's: {"error": message}.

Knows nothing of routes. Messages have a maximum length, because some quote the client. `code` is always a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

MAX_MESSAGE = 500
MAX_PARAM = 100
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
MESSAGES_PATH = "/v1/messages"
OLLAMA_PATHS = "/api/"
MESSAGE_ERROR_TYPES = ERROR_TYPES | {
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """A reply with an error status. retry_after: seconds, sent as the Retry-After header; param: the field at fault;
    details, anthropic_message: in Anthropic's form only, for its clients."""

    status: int
    message: str
    param: str | None = None
    code: str = "invalid_value"
    retry_after: int | None = None
    details: Mapping[str, str] | None = None
    anthropic_message: str | None = None

    def body(self) -> dict[str, dict[str, str | None]]:
        """The object OpenAI's clients parse, both as a reply of its own and inside a stream."""
        return {"error": self._detail(ERROR_TYPES, "server_error")}

    def message_body(self) -> dict[str, Any]:
        """The same in Anthropic's form; param and code, which it does not have, stand beside its own fields."""
        details = {} if self.details is None else {"details": self.details}
        told = self._detail(MESSAGE_ERROR_TYPES, "api_error")
        return {"type": "error", "error": told | {"message": self.anthropic_message or told["message"]} | details}

    def ollama_body(self) -> dict[str, str]:
        """The same in Ollama's form, a sentence, which begins with the field at fault where it does not name it."""
        is_named = self.param is None or self.param.rpartition(".")[2] in self.message
        return {"error": shortened(self.message if is_named else f"{self.param}: {self.message}", MAX_MESSAGE)}

    def response(self, scope: Scope) -> JSONResponse:
        """The answer to this request."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        headers |= {"Accept-Encoding": "gzip, deflate"} if self.status == 415 else {}
        if is_ollama(scope):
            return JSONResponse(self.ollama_body(), self.status, headers)
        if not is_message(scope):
            return JSONResponse(self.body(), self.status, headers)
        request_id = scope.get("state", {}).get("request_id")
        return JSONResponse(self.message_body() | {"request_id": request_id}, self.status, headers)

    def _detail(self, types: Mapping[int, str], own: str) -> dict[str, str | None]:
        """types: an error type for each status; own: the type of errors that are the server's."""
        return {
            "message": shortened(self.message, MAX_MESSAGE),
            "type": types.get(self.status, own if self.status >= 500 else "invalid_request_error"),
            "param": None if self.param is None else shortened(self.param, MAX_PARAM),
            "code": self.code,
        }


def is_message(scope: Scope) -> bool:
    """Whether a request is of Anthropic's API."""
    path: str = scope["path"]
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def is_ollama(scope: Scope) -> bool:
    """Whether a request is of Ollama's API."""
    path: str = scope["path"]
    return path.startswith(OLLAMA_PATHS)


OnError = Callable[[ApiError], None]  # told of every error answered


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the field that an ApiError from the block names, also where its message begins with it, to what this
    endpoint calls it. names: old to new."""
    try:
        yield
    except ApiError as error:
        old = error.param or ""
        new = names.get(old, old)
        if old and error.message.startswith((f"{old} ", f"{old}:")):
            error.message = new + error.message.removeprefix(old)
        error.param = new or None
        raise


def shortened(text: str, limit: int) -> str:
    """`text` cut to `limit` characters, with lone surrogates (which JSON may carry and UTF-8 may not) replaced."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param, code)


def require_at_most(count: int, limit: int, param: str) -> None:
    """Raises ApiError where `count` is above the server's limit."""
    if count > limit:
        raise invalid(f"{param}: {count} is above this server's limit of {limit}.", param, "above_limit")


def unavailable(message: str, code: str, retry_after: int = 1) -> ApiError:
    return ApiError(503, message, None, code, retry_after)


def internal_error() -> ApiError:
    """The error for a fault in the server: the client learns no details, the log has them under the request id."""
    return ApiError(500, "The server had an error while processing the request.", None, "internal_error")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's errors as an ApiError that names the field as the client wrote it."""
    error = errors[0]
    kind, message, context = str(error["type"]), str(error["msg"]), error.get("ctx") or {}
    path = [str(part) for part in error["loc"]]
    if context.get("field"):
        path.append(str(context["field"]))
    param = ".".join(path) or None
    if kind == "gander":
        return invalid(message, param, str(context["code"]))
    if kind == "missing":
        return invalid(f"{param or 'A JSON body'} is required.", param, "missing_required_parameter")
    if kind == "extra_forbidden":
        return invalid(f"Unknown parameter: {param}.", param, "unknown_parameter")
    if kind == "model_type":
        return invalid(f"{param or 'The body'} must be an object.", param, "invalid_type")
    if kind in ("too_short", "too_long"):
        bound = message.partition(" after validation")[0].partition(" should ")[2]
        return invalid(f"{param} must {bound}.", param)
    code = "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"
    return invalid(f"{param or 'The body'}: {message[:1].lower()}{message[1:]}.", param, code)


def is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
