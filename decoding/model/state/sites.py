"""The places where layers carry something from token to token: the functions that modelling code calls by name.

Transformers gives these functions names of their own in each modelling module, which is how it puts quicker kernels in
their place; binding another function to the name is the same act. Knows what they are called with, not how a step runs.
Invariant: a model calls its sites in the same order in every forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from decoding.cache.state_pool import StateShape

CONVOLUTION = "causal_conv1d_fn"
DELTA, KIMI_DELTA = "torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention"
MAMBA_1, MAMBA_2 = "mamba_selective_scan", "mamba2_chunk_scan"
NAMES = (CONVOLUTION, DELTA, KIMI_DELTA, MAMBA_1, MAMBA_2)
HEAD_WIDTH = 64  # of Mamba-1, whose channels have no heads: they are cut into as many as this at most
Bindings = dict[str, Callable[..., Any]]


class Site(NamedTuple):
    """name: of the function. shape: [W, C] of a convolution's window, or [H, K, V] of a recurrence's matrices."""

    name: str
    shape: tuple[int, ...]


def state_shape(sites: list[Site]) -> StateShape:
    """Of a model's states: its windows and its matrices, each in the order of its sites."""
    return StateShape(
        windows=tuple((site.shape[0], site.shape[1]) for site in sites if site.name == CONVOLUTION),
        matrices=tuple((site.shape[0], site.shape[1], site.shape[2]) for site in sites if site.name != CONVOLUTION),
    )


class Names:
    """The names of sites in the modules that a model's code is in."""

    def __init__(self, model: nn.Module) -> None:
        modules = {type(module).__module__ for module in model.modules()}
        self._spaces = [vars(sys.modules[name]) for name in sorted(modules) if name in sys.modules]
        self._places = [(space, name) for space in self._spaces for name in NAMES if name in space]

    @contextmanager
    def bound(self, functions: Bindings) -> Iterator[None]:
        """Inside the block, modelling code calls these functions."""
        before = [(space, name, space[name]) for space, name in self._places]
        for space, name in self._places:
            space[name] = functions[name]
        try:
            yield
        finally:
            for space, name, function in before:
                space[name] = function

    @contextmanager
    def recorded(self) -> Iterator[list[Site]]:
        """Inside the block, the sites that the model's forward calls are listed."""
        sites: list[Site] = []
        own = {name: space[name] for space, name in self._places}

        def recorder(name: str) -> Callable[..., Any]:
            def record(*arguments: Any, **named: Any) -> Any:
                sites.append(Site(name, SHAPES[name](*arguments, **named)))
                return own[name](*arguments, **named)

            return record

        with self.bound({name: recorder(name) for name in own}):
            yield sites


def head_width(num_channels: int) -> int:
    """The most channels, up to `HEAD_WIDTH`, that `num_channels` can be cut into without a rest."""
    return next(width for width in range(HEAD_WIDTH, 0, -1) if num_channels % width == 0)


def _shape_of_convolution(_hidden: Any, weight: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    return weight.shape[1] - 1, weight.shape[0]


def _shape_of_delta(_query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    return value.shape[2], key.shape[3], value.shape[3]


def _shape_of_mamba_1(hidden: Any, _dt: Any, A: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    width = head_width(hidden.shape[1])
    return hidden.shape[1] // width, A.shape[1], width


def _shape_of_mamba_2(hidden: Any, _dt: Any, _a: Any, B: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    return hidden.shape[2], B.shape[3], hidden.shape[3]


SHAPES: dict[str, Callable[..., tuple[int, ...]]] = {
    CONVOLUTION: _shape_of_convolution,
    DELTA: _shape_of_delta,
    KIMI_DELTA: _shape_of_delta,
    MAMBA_1: _shape_of_mamba_1,
    MAMBA_2: _shape_of_mamba_2,
}
