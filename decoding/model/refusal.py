"""Makes one sentence of whatever loading a model raises: files of strangers make libraries raise anything.

Knows nothing of what is loaded. Invariant: what another try may mend stays what it was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors import SafetensorError

from decoding.errors import GanderError, ModelRefused, RankDied, in_one_line

logger = logging.getLogger(__name__)

SPEAKING = (
    OSError,
    ValueError,
    ImportError,
    SafetensorError,
)  # whose messages need no name of the exception before them


def is_device_error(error: BaseException) -> bool:
    """Whether a device, its memory or a rank failed, after which nothing that it computes can be relied on. Triton
    raises its own errors as RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError | RankDied):
        return True
    return isinstance(error, RuntimeError) and "[CUDA]" in str(error)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raise whatever the block raises as ModelRefused, a sentence that begins with `what`. Errors of our own stay as
    they are, and so does what is no fault of a model: a device or memory that fails may work at the next try."""
    try:
        yield
    except (GanderError, MemoryError):
        raise
    except Exception as error:
        if is_device_error(error):
            raise
        logger.debug("%s.", what, exc_info=True)
        raise ModelRefused(f"{what}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """An exception's message in one line, after its name where the message does not speak for itself."""
    said, name = in_one_line(error), type(error).__name__
    return said if isinstance(error, SPEAKING) or said == name else f"{name}: {said}"
