"""Runs inputs through the model, and makes vectors of length one of what comes back.

Owns how many of a request's inputs are under way at a time. Knows no reply format.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from server.engine_client.client import EngineClient
from server.generation.events import require_finished
from server.http.errors import ApiError
from server.http.rate_limits import allowance_of
from server.http.sender import sender_of
from server.http.sse import until_disconnect
from server.prompts.pooling import pooling_of
from server.prompts.served_model import ServedModel

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)  # drawn after the prompt, told nobody
PLAIN = SpeculationParams(method="none")


async def embedded(
    request: Request, model: ServedModel, client: EngineClient, inputs: Sequence[list[int]]
) -> list[bytes]:
    """The embedding of each input, as the worker told it. client: the model's. Raises ApiError; the first error ends
    all."""
    sender = sender_of(request, None)
    pooling = await asyncio.to_thread(pooling_of, model.settings)
    call_id = f"embd-{uuid.uuid4().hex}"
    requests = [
        Submit(
            request_id=f"{call_id}-{number}",
            prompt=token_ids,
            sampling=ONE_TOKEN,
            speculation=PLAIN,
            tenant=sender.tenant,
            session_id=sender.session_id,
            call_id=call_id,
            weight=sender.weight,
            pooling=pooling,
        )
        for number, token_ids in enumerate(inputs)
    ]
    if (allowance := allowance_of(request)) is not None:
        allowance.take_prompt(sum(map(len, inputs)))
    vectors: list[bytes] = []
    size = model.engine.max_running
    try:
        while len(vectors) < len(requests):
            some = _run(client, requests[len(vectors) : len(vectors) + size], sender.timeout)
            vectors += await until_disconnect(request.receive, some)
    except ApiError:
        if allowance is not None and not vectors:
            allowance.give_back(sum(map(len, inputs)))
        raise
    return vectors


async def _run(client: EngineClient, requests: Sequence[Submit], timeout: float | None) -> list[bytes]:
    """The embeddings of requests that may all run at a time."""
    replies = await client.submit(requests, timeout)
    vectors = [b""] * len(requests)
    try:
        while not replies.is_finished:
            for place, reply in (await replies.read()).items():
                require_finished(reply.end)
                vectors[place] = reply.vector or vectors[place]
    finally:
        replies.close()
    return vectors


def of_length_one(vector: bytes, dimensions: int | None) -> NDArray[np.float32]:
    """float32 [D]: the first `dimensions` numbers, by default all, as a vector of length one. vector: float32,
    little-endian. The sum of squares is taken in float64, always in the same order."""
    numbers = np.frombuffer(vector, "<f4").astype(np.float64)[:dimensions]
    length = np.sqrt(np.square(numbers).sum())
    return (numbers / length if length else numbers).astype("<f4")
