"""Replaces functions of torch that modelling code calls by name, for the time of a forward.

Knows no replacement: each kind of arithmetic has a table of its own, and a forward enters one mode, since what a mode
costs is paid at every call. Invariant: a call that no replacement takes gives what torch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Replacements = dict[Callable[..., Any], Callable[..., torch.Tensor | None]]


class ReplacedFunctions(TorchFunctionMode):
    """Inside this mode the functions of a table are answered by their replacements; nothing else changes.

    A replacement has its function's arguments, and returns None for a call that it leaves to the function.
    """

    def __init__(self, table: Replacements) -> None:
        super().__init__()
        self._table = table

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        replacement, named = self._table.get(func), kwargs or {}
        found = None if replacement is None else replacement(*args, **named)
        return func(*args, **named) if found is None else found
