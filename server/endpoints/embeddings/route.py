"""POST /v1/embeddings."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.embeddings.inputs import encode_inputs
from server.endpoints.embeddings.vectors import embedded, of_length_one
from server.endpoints.openapi import error_replies
from server.http.body import takes
from server.schemas.catalog import Embedding, EmbeddingReply, EmbeddingRequest
from server.service import service_of

router = APIRouter()


@router.post(
    "/v1/embeddings",
    response_model=EmbeddingReply,
    responses=error_replies(400, 403, 404, 408, 413, 415, 429, 500, 503, 504),
    openapi_extra=takes(EmbeddingRequest),
)
async def create_embeddings(request: Request) -> Response:
    """A vector for each input: the model's last hidden states, pooled."""
    service = service_of(request)
    body = await service.read(request, EmbeddingRequest)
    model = await service.require_model(request, body.model)
    inputs = await service.work_on(request, lambda: encode_inputs(model, body.input, body.dimensions))
    vectors = await embedded(request, model, service.models.find(body.model).client, inputs)
    num_tokens = sum(map(len, inputs))

    def written() -> bytes:
        reply: EmbeddingReply = {
            "object": "list",
            "data": _entries(vectors, body),
            "model": model.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        return msgspec.json.encode(reply)

    return Response(await service.pool.run_beside(request, written), media_type="application/json")


def _entries(vectors: Sequence[bytes], body: EmbeddingRequest) -> list[Embedding]:
    entries: list[Embedding] = []
    for index, vector in enumerate(vectors):
        numbers = of_length_one(vector, body.dimensions)
        is_packed = body.encoding_format == "base64"
        shown = b64encode(numbers.tobytes()).decode() if is_packed else numbers.tolist()
        entries.append({"object": "embedding", "index": index, "embedding": shown})
    return entries
