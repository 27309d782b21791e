"""/v1/responses/{id}: reads and deletes stored responses. A key sees only its own."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi import Response as HttpResponse

from server.endpoints.openapi import error_replies
from server.generation.response_store import StoredResponse
from server.http.auth import caller_of
from server.http.errors import ApiError, invalid
from server.schemas import response_replies
from server.schemas.messages import Part, TextPart
from server.schemas.response_replies import ResponseDeletion
from server.schemas.responses import InputItem
from server.service import service_of

router = APIRouter(prefix="/v1/responses")


@router.get("/{response_id}", response_model=response_replies.Response, responses=error_replies(400, 404))
async def get_response(response_id: str, request: Request, stream: bool = False) -> HttpResponse:
    """An earlier response, as it was sent when it was complete."""
    stored = _require(response_id, request)
    if stream:
        raise invalid("An earlier response is not streamed again; leave stream out.", "stream", "unsupported_parameter")
    return HttpResponse(stored.reply, media_type="application/json")


@router.get("/{response_id}/input_items", responses=error_replies(400, 404))
async def list_input_items(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> response_replies.InputItemList:
    """The items that a response answers, those of the responses before it included. after: the id of an item."""
    stored = _require(response_id, request)
    work = partial(_page, stored, limit, order == "asc", after)
    return await service_of(request).pool.run_beside(request, work)


@router.delete("/{response_id}", responses=error_replies(404))
async def delete_response(response_id: str, request: Request) -> ResponseDeletion:
    """Delete an earlier response. Responses that continued it keep their own copy of the conversation."""
    _require(response_id, request)
    service_of(request).responses.delete(caller_of(request).tenant, response_id)
    return ResponseDeletion(id=response_id, object="response", deleted=True)


@router.post("/{response_id}/cancel", responses=error_replies(400, 404))
async def cancel_response(response_id: str, request: Request) -> response_replies.Response:
    """Always refused, because no response runs in the background. To stop a reply, close its connection."""
    _require(response_id, request)
    message = "The response is complete. None runs in the background: to end one, close its connection."
    raise ApiError(400, message, "response_id", "response_not_in_background")


def _page(stored: StoredResponse, limit: int, is_ascending: bool, after: str | None) -> response_replies.InputItemList:
    items = stored.read_input() if is_ascending else stored.read_input()[::-1]
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise invalid(f"The response has no input item '{after}'.", "after")
    start = 0 if after is None else ids.index(after) + 1
    data = [_shown(item) for item in items[start : start + limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(items),
    }


def _shown(item: InputItem) -> dict[str, Any]:
    """The item as OpenAI lists it: content in parts, and complete."""
    shown = item.model_dump(exclude_none=True) | {"status": "completed"}
    if item.type == "reasoning":
        parts = [] if item.content is None else [{"type": "reasoning_text", "text": item.content}]
        return shown | {"summary": [], "content": parts}
    if isinstance(item.output, list):
        return shown | {"output": [_shown_part(part) for part in item.output]}
    if isinstance(item.content, list):
        return shown | {"content": [_shown_part(part) for part in item.content]}
    if item.type == "message" and item.role == "assistant":
        return shown | {"content": [{"type": "output_text", "text": item.content, "annotations": [], "logprobs": []}]}
    if item.type == "message":
        return shown | {"content": [{"type": "input_text", "text": item.content}]}
    return shown


def _shown_part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "image_url": part.image_url.url, "detail": part.image_url.detail}


def _require(response_id: str, request: Request) -> StoredResponse:
    stored = service_of(request).responses.find(caller_of(request).tenant, response_id)
    if stored is None:
        message = f"There is no response '{response_id}', or none any more: they are kept in memory, and not for ever."
        raise ApiError(404, message, "response_id", "response_not_found")
    return stored
