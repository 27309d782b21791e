"""How a request ends that met an exception: its caller is told which part raised it, the log where.

Knows parts by the modules they live in. Invariant: neither is told what an exception says that is not our own, since
that may quote a prompt.
"""

from __future__ import annotations

import logging
import traceback

from decoding.core.events import Failed, Rejected
from decoding.errors import BrokenSequence, RequestRejected

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
    "decoding.model.vision": "tower",
    "decoding.engine": "engine",
}


def rejected_by(request_id: str, error: RequestRejected) -> Rejected:
    """The end of a request that cannot be served."""
    return Rejected(request_id=request_id, message=error.message, param=error.param, code=error.code)


def failed_by(request_id: str, error: BaseException) -> Failed:
    """The end of a request that met this exception while it ran."""
    if isinstance(error, BrokenSequence):
        return Failed(request_id=request_id, message=str(error), code=error.code)
    sentence = f"The {part_of(error)} failed while running this request ({type(error).__name__})."
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("Request %s ends: %s Most recent call last:\n%s", request_id, sentence, where)
    return Failed(request_id=request_id, message=sentence, code=CODE)


def part_of(error: BaseException) -> str:
    """The innermost part that the exception came through."""
    for frame, _line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_globals.get("__name__", "")
        for prefix, part in PARTS.items():
            if module.startswith(prefix):
                return part
    return "engine"
