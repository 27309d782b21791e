# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""A record of arrays that compiled code finds at an address: one number to hand over, however many arrays there are.

Unpacking forty arrays for a call takes 4 microseconds, and 15 behind a forward, which has emptied the caches.
Invariant: whoever keeps a record here keeps its arrays alive, and writes it anew when one of them is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numba as nb
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

Record = TypeVar("Record")


def _unowned(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    """The same arrays, whose references compiled code does not count."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = array.meminfo.type(None)
        array.parent = array.parent.type(None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for place, member in enumerate(kind):
            part = _unowned(context, builder, member, builder.extract_value(value, place))
            value = builder.insert_value(value, part, place)
    return value


def _writer(record: types.Type, field: str | None = None) -> Any:
    """For compiled code: write(address, value) of a record that is kept there, or of one of its fields."""
    number = None if field is None else record.fields.index(field)
    kind = record if number is None else record.types[number]

    @intrinsic
    def write(_context: Any, address: Any, value: Any) -> Any:
        if value != kind:
            raise TypingError(f"{field or 'a record'} of {value} cannot be kept as {kind}")

        def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            place = builder.inttoptr(values[0], context.get_value_type(record).as_pointer())
            if number is not None:
                place = cgutils.gep_inbounds(builder, place, 0, number)
            builder.store(_unowned(context, builder, kind, values[1]), place)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return write


class Layout:
    """Of a named tuple of arrays, numbers and such tuples. For compiled code: read(address), the record that is kept
    there, and write(address, record); `write_field` makes one for a field alone. num_words: of eight bytes, that a
    record takes."""

    def __init__(self, example: Any) -> None:
        """example: a record of the same types as all that will be kept."""
        kind = nb.typeof(example)

        @intrinsic
        def read(_context: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                return builder.load(builder.inttoptr(values[0], context.get_value_type(kind).as_pointer()))

            return kind(types.int64), codegen

        self.read, self.write, self._kind = read, _writer(kind), kind
        context = cpu_target.target_context
        self.num_words = (context.get_abi_sizeof(context.get_value_type(kind)) + 7) // 8

    def write_field(self, name: str) -> Any:
        """For compiled code: write(address, value) of this field of the record that is kept there."""
        return _writer(self._kind, name)


class Kept(Generic[Record]):
    """A record, kept at an address. write: compiled, of the layout's `write`.

    Whoever writes fields of it sets `record` to what is kept there now.
    """

    def __init__(self, layout: Layout, write: Callable[[int, Record], None], record: Record) -> None:
        self._room = np.zeros(layout.num_words, np.int64)
        self._write = write
        self.address = int(self._room.ctypes.data)
        self.keep(record)

    def keep(self, record: Record) -> None:
        """In place of the one before."""
        self.record = record
        self._write(self.address, record)
