"""What an engine can never serve, or not now, and what it says then. Knows nothing of steps."""

from __future__ import annotations

from collections.abc import Collection

from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.drafting import registry as drafters
from decoding.engine.limits import Limits
from decoding.errors import RequestRejected
from decoding.model.memory import CacheRoom


def check_request(request: Request, config: EngineConfig, vocab_size: int, room: CacheRoom) -> None:
    """Raise RequestRejected, naming the field, for a request that can never be served."""
    request.validate(vocab_size)
    drafters.check(request.speculation)
    max_nodes = request.speculation.max_nodes or 0
    if max_nodes > config.max_nodes:
        raise RequestRejected(
            f"speculation.max_nodes is {max_nodes}, this server allows {config.max_nodes}",
            param="speculation.max_nodes",
        )
    if request.max_total > room.max_model_len:
        raise RequestRejected(
            f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.sampling.max_tokens}, "
            f"together more than the {room.max_model_len} there is room for",
            param="prompt",
            code="context_length_exceeded",
        )


def check_queue(request: Request, in_flight: Collection[str], limits: Limits) -> None:
    """Raise RequestRejected for an id that has not ended yet, and for one more request than may be open."""
    if request.id in in_flight:
        raise RequestRejected(f"a request with the id {request.id!r} has not ended yet", code="duplicate_request")
    if len(in_flight) >= limits.max_open:
        raise RequestRejected("the request queue is full", code="queue_full")
