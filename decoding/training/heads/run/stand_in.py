"""As much of msgspec as a training run needs, for machines that have torch, transformers and numba alone.

`bundle` copies this file to where `import msgspec` finds it, where there is none. Invariant: records behave as
msgspec's do in memory; nothing is decoded, so what was kept on disk counts as absent.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, NoReturn, dataclass_transform

field = dataclasses.field


class MsgspecError(Exception):
    """Raised for whatever would be read or written."""


DecodeError = ValidationError = MsgspecError


@dataclass_transform(field_specifiers=(field,))
class Struct:
    """A dataclass; what says how it is encoded changes nothing here."""

    def __init_subclass__(cls, *, frozen: bool = False, kw_only: bool = False, **_encoding: Any) -> None:
        super().__init_subclass__()
        for name in inspect.get_annotations(cls):
            default = vars(cls).get(name)
            if isinstance(default, list | dict | set):
                setattr(cls, name, field(default_factory=default.copy))
        dataclasses.dataclass(cls, frozen=frozen, kw_only=kw_only)


class _Codec:
    """encode, decode."""

    def encode(self, *_args: Any, **_named: Any) -> NoReturn:
        raise MsgspecError("this stand-in writes nothing")

    def decode(self, *_args: Any, **_named: Any) -> NoReturn:
        raise MsgspecError("this stand-in reads nothing")


json = msgpack = _Codec()
