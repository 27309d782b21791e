"""What an engine can never serve, or not now, and what it says then. Knows nothing of steps."""

from __future__ import annotations

from collections.abc import Collection

from decoding.cache.store import KvStore
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.drafting import registry as drafters
from decoding.errors import RequestRejected
from decoding.model.target_model import TargetModel


def room_needed(request: Request, config: EngineConfig) -> int:
    """Slots for the longest this request can become with the largest tree beside it."""
    return request.max_total + config.max_nodes


def check_request(request: Request, config: EngineConfig, model: TargetModel, store: KvStore) -> None:
    """Raise RequestRejected, naming the field, for a request that can never be served."""
    request.validate(model.vocab_size)
    drafters.check(request.speculation)
    max_nodes = request.speculation.max_nodes or 0
    if max_nodes > config.max_nodes:
        raise RequestRejected(
            f"speculation.max_nodes is {max_nodes}, this server allows {config.max_nodes}",
            param="speculation.max_nodes",
        )
    if request.max_total > model.max_model_len:
        raise RequestRejected(
            f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.sampling.max_tokens}, "
            f"together more than the model's {model.max_model_len}",
            param="prompt",
            code="context_length_exceeded",
        )
    room = room_needed(request, config)
    if room > store.total:
        raise RequestRejected(
            f"the request needs {room} slots of KV cache, the server has {store.total}", param="max_tokens"
        )


def check_queue(request: Request, in_flight: Collection[str], config: EngineConfig) -> None:
    """Raise RequestRejected for an id that has not ended yet, and for one more request than may be open."""
    if request.id in in_flight:
        raise RequestRejected(f"a request with the id {request.id!r} has not ended yet", code="duplicate_request")
    if len(in_flight) >= config.max_open:
        raise RequestRejected("the request queue is full", code="queue_full")
