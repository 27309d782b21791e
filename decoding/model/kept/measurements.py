"""What a start measured of a model on this machine, for the next one: a small file for each model and kind.

Knows no kind. Invariant: a file that cannot be read or written counts as missing.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from pathlib import Path
from typing import TypeVar

import msgspec

from decoding.core.files.output import replace_file
from decoding.kernels.processor import processor_name
from decoding.process.machine import cores

logger = logging.getLogger(__name__)

Measured = TypeVar("Measured", bound=msgspec.Struct)


class KeptMeasurements:
    """folder: exists, and belongs to one version of our sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, fingerprint: str, kind: type[Measured]) -> Measured | None:
        """What of this kind was last written for the model on such a machine; None if there are none."""
        try:
            return msgspec.json.decode(self._path(fingerprint, kind).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, fingerprint: str, measured: msgspec.Struct) -> None:
        path = self._path(fingerprint, type(measured))
        try:
            with replace_file(path) as file:  # another process may write the same
                file.write(msgspec.json.encode(measured))
        except OSError as error:
            logger.info("The next start will measure again what this one did: %s", error)

    def _path(self, fingerprint: str, kind: type[msgspec.Struct]) -> Path:
        name = hashlib.sha256(f"{machine()} {kind.__name__} {fingerprint}".encode()).hexdigest()[:16]
        return self._folder / f"timings-{name}.json"


def machine() -> str:
    """The processor, and the number of cores that this process may use."""
    return f"{platform.machine()} {processor_name()} {cores().usable}"
