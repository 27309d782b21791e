"""A stand-in for graphs of a device: operations are noted with the tensors they had, and run again on the same ones.

Like a graph it knows neither Python nor shapes: a length that was a number when it was noted stays that number, and a
tensor that was made anew is not read. What it made itself is spoilt between replays, as if others had used its memory.
Kernels that Triton interprets are noted as they are launched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from decoding.errors import ModelRefused

aten = torch.ops.aten
WAITING = {  # what waits for a device, or has a shape that only it knows
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.unique2.default if hasattr(aten, "unique2") else aten._unique2.default,
}


class Waits(ModelRefused):
    """Something was asked of the device that only waiting for it can tell."""


class Operation(NamedTuple):
    """made: the tensors that it gave, unless they are parts of those it was given."""

    call: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    made: list[torch.Tensor]


class Recorder(TorchDispatchMode):
    """operations: that ran inside the block, in order. Raises Waits."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        check_never_waits(func, args)
        found = func(*args, **options)
        given = {_memory_of(tensor) for tensor in _tensors((args, options))}
        made = [tensor for tensor in _tensors(found) if _memory_of(tensor) not in given]
        if made or func._schema.is_mutable:
            self.operations.append(Operation(func, args, options, made))
        return found


class RecordingCapture:
    """A `Capture` on the CPU."""

    def __init__(self) -> None:
        self._recorded: list[list[Operation]] = []

    def note(self, launch: Callable[[], None]) -> Callable[[], None]:
        launch()
        with Recorder() as recorder, _kernels_noted(recorder.operations):
            launch()
        self._recorded.append(recorder.operations)

        def replay() -> None:
            self._spoil()
            with torch.inference_mode():
                for call, arguments, options, made in recorder.operations:
                    for tensor, again in zip(made, _new(call(*arguments, **options), made), strict=True):
                        tensor.copy_(again)

        return replay

    def reserved_bytes(self) -> int:
        return 0

    def _spoil(self) -> None:
        with torch.inference_mode():
            for operations in self._recorded:
                for operation in operations:
                    for tensor in operation.made:
                        tensor.fill_(float("nan") if tensor.is_floating_point() else 0)


@contextmanager
def _kernels_noted(operations: list[Operation]) -> Iterator[None]:
    """Kernels that are interpreted inside the block are operations of their own."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        yield
        return
    launch = interpreter.GridExecutor.__call__

    def noted(executor: Any, *arguments: Any, **options: Any) -> None:
        operations.append(Operation(partial(launch, executor), arguments, options, []))
        with _disable_current_modes():
            launch(executor, *arguments, **options)

    with patch.object(interpreter.GridExecutor, "__call__", noted):
        yield


def check_never_waits(operation: Any, arguments: tuple[Any, ...]) -> None:
    """Raises Waits."""
    is_masked = operation is aten.index.Tensor and any(
        each is not None and each.dtype == torch.bool for each in arguments[1]
    )
    if operation in WAITING or is_masked:
        raise Waits(str(operation))


def _new(found: Any, made: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(_tensors(found))[: len(made)] if made else []


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor))


def _memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
