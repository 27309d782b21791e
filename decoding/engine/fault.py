"""What is told of an exception that one request met: its caller hears which part raised it, the log where.

Knows parts by the modules they live in. Invariant: neither is told what the exception says, which may quote a prompt.
"""

from __future__ import annotations

import logging
import traceback

from decoding.core.step_result import Broken
from decoding.errors import BrokenSequence

logger = logging.getLogger("gander.engine")

CODE = "broken_part"
# The first that a module's name begins with; the innermost frame that has one says where it was raised.
PARTS = {
    "decoding.sampling.grammar": "grammar",
    "decoding.sampling.logprobs": "log probabilities",
    "decoding.sampling.logits": "logits processors",
    "decoding.sampling": "sampler",
    "decoding.drafting.one_tree.prediction": "prediction",
    "decoding.drafting": "drafter",
    "decoding.stores": "session",
    "decoding.engine": "engine",
}


def broken_by(request_id: str, error: BaseException) -> Broken:
    """The end of a request that met this exception."""
    if isinstance(error, BrokenSequence):
        return Broken(request_id, str(error), error.code)
    sentence = f"The {part_of(error)} failed while running this request ({type(error).__name__})."
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("Request %s ends: %s Most recent call last:\n%s", request_id, sentence, where)
    return Broken(request_id, sentence, CODE)


def part_of(error: BaseException) -> str:
    """The innermost part that the exception came through."""
    for frame, _line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_globals.get("__name__", "")
        for prefix, part in PARTS.items():
            if module.startswith(prefix):
                return part
    return "engine"
