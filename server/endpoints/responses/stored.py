"""/v1/responses/{id}: reads and deletes stored responses. A key sees only its own."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi import Response as HttpResponse

from server.endpoints.openapi import error_replies
from server.generation.response_store import StoredResponse
from server.http.auth import caller_of
from server.http.errors import ApiError, invalid
from server.schemas import response_replies
from server.schemas.response_replies import ResponseDeletion
from server.service import service_of

router = APIRouter(prefix="/v1/responses")


@router.get("/{response_id}", response_model=response_replies.Response, responses=error_replies(400, 404))
async def get_response(response_id: str, request: Request, stream: bool = False) -> HttpResponse:
    """An earlier response, as it was sent when it was complete."""
    stored = _require(response_id, request)
    if stream:
        raise invalid("An earlier response is not streamed again; leave stream out.", "stream", "unsupported_parameter")
    return HttpResponse(stored.reply, media_type="application/json")


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


def _require(response_id: str, request: Request) -> StoredResponse:
    stored = service_of(request).responses.find(caller_of(request).tenant, response_id)
    if stored is None:
        message = f"There is no response '{response_id}', or none any more: they are kept in memory, and not for ever."
        raise ApiError(404, message, "response_id", "response_not_found")
    return stored
