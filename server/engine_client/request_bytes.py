"""What requests hold in the worker's memory while they wait and run: their tokens, lists, pictures, masks
and counts.

An estimate from measurements, without the KV cache, which is set aside at the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.process.machine import memory_left
from decoding.worker.calls import Submit

REQUEST_BYTES = 24 * 2**10  # of its records, drafter and reply
TOKEN_BYTES = 256  # of a prompt's or prediction's token, in a drafter's indexes
ID_BYTES = 40  # of a number in a list
COUNTED_BYTES = 5  # of a token of the vocabulary where penalties count tokens
LEAST_LIMIT = 256 * 2**20
FREE_SHARE = 0.25  # of the memory that is free at the start, for all requests together


def default_limit() -> int:
    """The most bytes that all requests may hold where nobody says it."""
    left = memory_left()
    return LEAST_LIMIT if left is None else max(LEAST_LIMIT, int(FREE_SHARE * left))


def call_bytes(requests: Sequence[Submit], vocab_size: int) -> int:
    """Bytes that the requests of one call hold together; they share their lists."""
    asked = requests[0].sampling
    pictures = {id(each): each for request in requests for each in request.pictures}.values()
    seen = sum(len(numbers.content) for each in pictures for numbers in each.inputs.values())
    tokens = sum(len(request.prompt) + len(request.prediction) for request in requests)
    own = REQUEST_BYTES + COUNTED_BYTES * (vocab_size if asked.has_penalties else 0)
    shared = 2 * len(asked.logit_bias) + sum(map(len, asked.bad_words)) + len(asked.allowed_token_ids or ())
    return len(requests) * own + TOKEN_BYTES * tokens + ID_BYTES * shared + seen
