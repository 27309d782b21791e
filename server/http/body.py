"""Reads a request's JSON body into one of the wire models; a large body is read in a thread, beside the event loop.

Owns the bounds on a body as a whole; its fields are the wire models'. Invariant: the work is linear in the bytes,
whatever a client sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from server.http.errors import from_validation, invalid, is_json, is_ollama
from server.http.work.work_pool import WorkPool

NAMED = 65536  # bytes up to which an error about NaN, infinity or half a surrogate pair names the field that has it
MAX_DEPTH = 256  # of nested lists and objects; libraries that write JSON fail at about a thousand
STRING_OR_PART = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[{:]', re.DOTALL)  # each byte is read once

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, model: type[M], pool: WorkPool, max_parts: int) -> M:
    """The body as a `model`. max_parts: see `has_more_parts`. Raises an ApiError that names the field at fault."""
    try:
        data = await request.body()
    except ClientDisconnect:
        raise invalid("The body ended too early.", None, "invalid_json") from None
    if not is_json(request.headers.get("content-type", "")) and not _may_be_unlabelled(request):
        raise invalid("The body must be JSON, sent as Content-Type: application/json.", None, "invalid_json")
    return await pool.run(request, lambda: parse_body(data, model, max_parts))


def _may_be_unlabelled(request: Request) -> bool:
    """Whether the body is read as JSON whatever it is called, as Ollama does, for those who use curl as its
    documentation says. A web page's request names its origin, and may not do this: it would need no permission."""
    return is_ollama(request.scope) and "origin" not in request.headers


def parse_body(data: bytes, model: type[M], max_parts: int) -> M:
    """The body as a `model`. Raises an ApiError for the first thing that is wrong."""
    if has_more_parts(data, max_parts):
        message = f"The body has more objects, lists and members than this server's limit of {max_parts}."
        raise invalid(message, None, "above_limit")
    is_strict = True
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        value, is_strict = _leniently_decoded(data, str(error)), False
    if depth_of(value) > MAX_DEPTH:
        raise invalid(f"The body is nested more than {MAX_DEPTH} deep.", None, "above_limit")
    try:
        body = model.model_validate(value)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from None
    if not is_strict:
        _require_strict(value)
    return body


def _require_strict(body: Mapping[str, Any]) -> None:
    """Raises ApiError for the first field that has what only Python's parser accepts, at any depth."""
    for name, value in body.items():
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise invalid(
                f"{name} has half a surrogate pair, which is not a character.", name, "invalid_unicode"
            ) from None
        except ValueError:
            raise invalid(f"{name} has a number that is not finite.", name) from None


def _leniently_decoded(data: bytes, reason: str) -> Any:
    """Decode what only Python's parser accepts (NaN, infinity, half a surrogate pair), so that it is refused by its
    field's name. Raises ApiError where it is not JSON either way, or the body is large."""
    try:
        if len(data) <= NAMED:
            return json.loads(data)
    except json.JSONDecodeError as error:
        reason = error.msg
    except (ValueError, RecursionError):  # not UTF-8, a number of thousands of digits, lists in lists without end
        pass
    raise invalid(f"The body is not valid JSON: {reason}.", None, "invalid_json")


def has_more_parts(data: bytes, limit: int) -> bool:
    """Whether JSON has more than `limit` objects, lists and object members, which cost most time to read."""
    if data.count(b"{") + data.count(b"[") + data.count(b":") <= limit:
        return False
    count = 0
    for match in STRING_OR_PART.finditer(data):
        count += data[match.start()] != ord('"')
        if count > limit:
            return True
    return False


def depth_of(value: object) -> int:
    """How deep lists and objects are nested in `value`."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a path whose body is a `model`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
