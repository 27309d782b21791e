"""POST /api/embed and the older /api/embeddings: vectors of length one, as /v1/embeddings makes them."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.embeddings.inputs import encode_inputs
from server.endpoints.embeddings.vectors import embedded, of_length_one
from server.endpoints.ollama.names import require_model
from server.endpoints.openapi import error_replies
from server.http.body import takes
from server.http.errors import naming
from server.schemas.ollama.replies import EmbeddingsReply, EmbedReply, OllamaError
from server.schemas.ollama.requests import EmbeddingsRequest, EmbedRequest
from server.service import service_of

router = APIRouter(prefix="/api")

ERRORS = error_replies(400, 403, 404, 408, 413, 415, 429, 500, 503, 504, model=OllamaError)


@router.post("/embed", response_model=EmbedReply, responses=ERRORS, openapi_extra=takes(EmbedRequest))
async def embed(request: Request) -> Response:
    """A vector for each input."""
    began, service = time.monotonic_ns(), service_of(request)
    body = await service.read(request, EmbedRequest)
    model, held = await require_model(request, service, body.model, body.keep_alive)
    inputs = await service.work_on(
        request, lambda: encode_inputs(model, body.input, body.dimensions, is_cut=body.truncate)
    )
    vectors = await embedded(request, model, held.client, inputs)

    def written() -> bytes:
        reply: EmbedReply = {
            "model": body.model,
            "embeddings": [of_length_one(vector, body.dimensions).tolist() for vector in vectors],
            "total_duration": time.monotonic_ns() - began,
            "load_duration": 1,
            "prompt_eval_count": sum(map(len, inputs)),
        }
        return msgspec.json.encode(reply)

    return Response(await service.pool.run_beside(request, written), media_type="application/json")


@router.post("/embeddings", response_model=EmbeddingsReply, responses=ERRORS, openapi_extra=takes(EmbeddingsRequest))
async def embeddings(request: Request) -> EmbeddingsReply:
    """The vector of one prompt."""
    service = service_of(request)
    body = await service.read(request, EmbeddingsRequest)
    model, held = await require_model(request, service, body.model, body.keep_alive)
    with naming({"input": "prompt"}):
        inputs = await service.work_on(request, lambda: encode_inputs(model, [body.prompt], None, is_cut=True))
    (vector,) = await embedded(request, model, held.client, inputs)
    return {"embedding": of_length_one(vector, None).tolist()}
