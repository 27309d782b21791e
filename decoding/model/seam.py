"""The seam into transformers: the attention function that unmodified modelling code calls.

Knows which module is which layer of which model; knows nothing of weights or requests. "gander" is registered as an
attention implementation but not as a mask implementation, so that transformers builds no mask and no cache; so is
"gander_traced", which a compiler sees as one opaque operation. "gander_probe" is registered as both, so that the probe
sees each layer's mask request.
Invariant: a module is bound to at most one seam, and every model has its own, so models can alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from decoding.attention.backend import AttentionBackend
from decoding.attention.joint import attend_jointly
from decoding.cache.batch import StepBatch
from decoding.core.layer import LayerSpec
from decoding.errors import ModelRefused
from decoding.model.replacing.replacer import Replaced

SERVING, TRACED, PROBING = "gander", "gander_traced", "gander_probe"


class MaskTag(NamedTuple):
    """Takes the place of a mask in a probed model. kind: full, sliding or chunked; size: of the window or chunk."""

    kind: str
    size: int


class AttentionCall(NamedTuple):
    """One call of the attention interface, as the probe sees it."""

    module: nn.Module
    query_1HND: torch.Tensor
    key_1KND: torch.Tensor
    value_1KNV: torch.Tensor
    mask: Any
    options: dict[str, Any]


class Observer(Protocol):
    def __call__(self, call: AttentionCall) -> torch.Tensor:
        """The attention output [1, N, H, V] of a probed call."""


class Seam:
    """One model's attention: its layers, its backend, and the plan of the step that is running. replaced: for a
    report."""

    def __init__(self, layers: Sequence[tuple[nn.Module, LayerSpec]], backend: AttentionBackend) -> None:
        self.backend = backend
        self._plan: Any = None
        self._batch: StepBatch | None = None
        self.replaced = Replaced("calls of attention answered", len(layers), tuple(layer for _, layer in layers))
        self._numbered = {getattr(module, "layer_idx", None): layer for module, layer in layers}
        self._is_numbered = len(self._numbered) == len(layers) and None not in self._numbered
        for module, layer in layers:
            _BOUND[module] = (self, layer)

    @contextmanager
    def running(self, plan: Any, batch: StepBatch | None = None) -> Iterator[None]:
        """Inside the block, attention calls of this model use `plan`, the backend's plan of a step. batch: the step,
        where some of its tokens see each other in both directions."""
        self._plan, self._batch = plan, batch
        outer = _RUNNING.set(self)
        try:
            yield
        finally:
            self._plan = self._batch = None
            _RUNNING.reset(outer)

    def check_traceable(self) -> None:
        """Raise ModelRefused if a traced model could not tell which of its layers attends."""
        if not self._is_numbered:
            raise ModelRefused("the model cannot be compiled: its attention layers have no numbers of their own")

    @property
    def plan(self) -> Any:
        assert self._plan is not None, "the model was called outside of a step"
        return self._plan

    def spec_of(self, module: nn.Module) -> LayerSpec | None:
        """The `LayerSpec` of a module of this model; None for any other module."""
        seam, layer = _BOUND.get(module, (None, None))
        return layer if seam is self else None

    def attend(self, layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out_1NHV = self.backend.attend(layer, query, key, value, self.plan)
        if self._batch is not None:
            for tokens in self._batch.joint:
                attend_jointly(layer, query, self._batch, tokens, out_1NHV)
        return out_1NHV

    def attend_numbered(self, number: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return self.attend(self._numbered[number], query, key, value)


def is_joint() -> bool:
    """Whether the step that is running has tokens that see each other in both directions, which the seam alone does."""
    seam = _RUNNING.get(None)
    return seam is not None and seam._batch is not None


def running_plan() -> Any:
    """The backend's plan of the step that is running; None outside of one."""
    seam = _RUNNING.get(None)
    return None if seam is None else seam.plan


_RUNNING: ContextVar[Seam] = ContextVar("the seam of the model that is running")
_BOUND: WeakKeyDictionary[nn.Module, tuple[Seam, LayerSpec]] = WeakKeyDictionary()
_OBSERVED: WeakKeyDictionary[nn.Module, Observer] = WeakKeyDictionary()


@contextmanager
def implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run `model` with another attention implementation inside the block."""
    before = [(config, config._attn_implementation) for config in _configs(model)]
    set_implementation(model, name)
    try:
        yield
    finally:
        for config, old_name in before:
            config._attn_implementation = old_name


def set_implementation(model: PreTrainedModel, name: str) -> None:
    for config in _configs(model):
        config._attn_implementation = name


@contextmanager
def observed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Inside the block, pass every attention call of `model` to `observer`."""
    modules = list(model.modules())
    for module in modules:
        _OBSERVED[module] = observer
    try:
        with implementation(model, PROBING):
            yield
    finally:
        for module in modules:
            del _OBSERVED[module]


def _configs(model: PreTrainedModel) -> list[Any]:
    """Every configuration object that a module of the model reads; sub-models have their own."""
    found = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config for config in found.values() if hasattr(config, "_attn_implementation")]


def _serve(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,  # noqa: ARG001 - part of the interface; never built for this name
    **_: Any,
) -> tuple[torch.Tensor, None]:
    seam, layer = _BOUND[module]
    return seam.attend(layer, query, key, value), None


@torch.library.custom_op("gander::attend", mutates_args=())
def _attend_opaquely(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, number: int) -> torch.Tensor:
    """Attention of the running model's layer `number`. The compiler may ignore that it writes the cache: later layers
    read it, and they depend on this one's output, so the order cannot change."""
    return _RUNNING.get().attend_numbered(number, query, key, value)


@_attend_opaquely.register_fake
def _(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, _number: int) -> torch.Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def _serve_traced(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,  # noqa: ARG001 - as above
    **_: Any,
) -> tuple[torch.Tensor, None]:
    return torch.ops.gander.attend(query, key, value, module.layer_idx), None


def _observe(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    return _OBSERVED[module](AttentionCall(module, query, key, value, attention_mask, options)), None


def _tag_mask(mask_function: Any = None, local_size: int | None = None, **_: Any) -> MaskTag:
    """Tell a sliding window from a chunk by asking the mask function about two positions.

    Position `size` sees position 1 through a window of that size, and not from the next chunk.
    """
    if not local_size:
        return MaskTag("full", 0)
    is_sliding = bool(mask_function(0, 0, torch.tensor(local_size), torch.tensor(1)))
    return MaskTag("sliding" if is_sliding else "chunked", int(local_size))


AttentionInterface.register(SERVING, _serve)
AttentionInterface.register(TRACED, _serve_traced)
AttentionInterface.register(PROBING, _observe)
AttentionMaskInterface.register(PROBING, _tag_mask)
