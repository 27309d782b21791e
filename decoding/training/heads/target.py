"""The target during a head's training: its features and distributions over texts, and its probabilities in draft trees.

Owns the target, its hooks and its keys and values. Features are the inputs of three layers, recorded during the
target's own forward. Invariant: a text's keys and values stay in the cache while it is read, so trees run only their
own nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import BLOCK_LEN, num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows
from decoding.config import EngineConfig
from decoding.errors import ConfigError, ModelRefused
from decoding.model.checkpoint import resolve
from decoding.model.features import FeatureTap, decoder_layers
from decoding.model.target_model import TargetModel
from decoding.training.heads.trees import Forest

# Shape suffixes: T tokens of a text, F three target widths, V the target's vocabulary, R rows of a forward.
LAST_LAYERS = 4  # that new heads may begin as
TREE_SLOTS = 16384  # cache slots for the trees of one forward
MOST_OFF = 0.05  # of the largest logit, in 16 bits
TRIAL = range(1, 9)  # tokens


@dataclass(frozen=True, slots=True)
class Reading:
    """One text. features_TF, hidden_TE, logits_TV: float32, at each of its tokens; the second after the last norm.
    rows: where its keys and values lie."""

    features_TF: Tensor
    hidden_TE: Tensor
    logits_TV: Tensor
    rows: KvRows


@dataclass(frozen=True, slots=True)
class Chances:
    """For each node of a forest after its parent: the target's probability, and whether no token is more likely."""

    probabilities: NDArray[np.float64]
    is_likeliest: NDArray[np.bool_]


class OnlineTarget:
    """model: will be modified by hooks. num_tokens: of all texts that are read at once."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig, num_tokens: int) -> None:
        self.output_VE = model.get_output_embeddings().weight.detach()
        self.output_scale_E = _scale_of(getattr(model.get_decoder(), "norm", None), model)
        self.config: Any = model.config.get_text_config()
        layers = decoder_layers(model, self.config.num_hidden_layers)[-LAST_LAYERS:]
        self.last_layers = [_weights_of(layer, model) for layer in layers]  # as they were before they were packed
        self.model = TargetModel.from_model(model, config)
        self.layers: tuple[int, ...] = ()
        self._tap: FeatureTap | None = None
        self._last = self.model.last_hidden()
        num_texts = num_tokens // BLOCK_LEN  # at most, each with a block that is not full
        self._cache = KvCache(self.model.new_store(num_blocks_for(num_tokens) + num_texts + TREE_SLOTS // BLOCK_LEN))
        self._softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self._scale = self._find_scale()

    @classmethod
    def load(cls, config: EngineConfig, num_tokens: int) -> OnlineTarget:
        """Load by hub name, folder or "gosling". Raises ConfigError and ModelRefused."""
        config, folder = resolve(config)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, config.dtype), attn_implementation="eager", revision=config.revision
            )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"model {config.model!r} cannot be loaded: {error}") from error
        return cls(model.to(config.device), config, num_tokens)

    def watch(self, layers: Sequence[int]) -> None:
        """Record the inputs of these layers as features from now on. Raises ModelRefused."""
        self.layers, self._tap = tuple(layers), self.model.tap(layers)

    @contextmanager
    def reading(self, texts: Sequence[NDArray[np.int32]]) -> Iterator[list[Reading]]:
        """Run some texts in one packed forward; inside the block their keys and values stay in the cache."""
        all_rows = [self._cache.new_rows(len(text)) for text in texts]
        try:
            pairs = zip(all_rows, texts, strict=True)
            batch = pack([Segment(rows, text) for rows, text in pairs], self._cache.store)
            logits_RV = self.model.forward(batch)
            assert self._tap is not None, "nothing is watched"
            rows_R = torch.arange(batch.num_tokens, device=self.model.device)
            features_RF, hidden_RE = self._tap.rows(rows_R).float(), self._last.all_rows()[: batch.num_tokens].float()
            for rows, text in zip(all_rows, texts, strict=True):
                self._cache.store.commit(rows, np.arange(len(text), dtype=np.int32))
            bounds = pairwise(batch.offsets.tolist())
            yield [
                Reading(features_RF[first:end], hidden_RE[first:end], logits_RV[first:end], rows)
                for (first, end), rows in zip(bounds, all_rows, strict=True)
            ]
        finally:
            for rows in all_rows:
                self._cache.pool.release(rows.table)

    def chances(self, hidden_TE: Tensor, ids_W: Tensor) -> Tensor:
        """float32 [T, W]: the probabilities among some tokens after last hidden states. ids_W: int64."""
        return self._logits(hidden_TE, self.output_VE[ids_W]).softmax(-1)

    def _logits(self, hidden_TE: Tensor, output_WE: Tensor) -> Tensor:
        """float32: what the output layer makes of last hidden states."""
        logits_TW, cap = _product(hidden_TE, output_WE) * self._scale, self._softcap
        return cap * torch.tanh(logits_TW / cap) if cap else logits_TW

    def _find_scale(self) -> float:
        """The factor of a model's logits, 1 for most. Raises ModelRefused where they are something else than the output
        layer's of the last hidden states."""
        rows = self._cache.new_rows(len(TRIAL))
        try:
            said_TV = self.model.forward(pack([Segment(rows, np.array(TRIAL, np.int32))], self._cache.store)).float()
        finally:
            self._cache.pool.release(rows.table)
        cap = self._softcap
        plain_TV = cap * torch.atanh((said_TV / cap).clamp(-0.9999, 0.9999)) if cap else said_TV
        raw_TV = _product(self._last.all_rows()[: len(TRIAL)], self.output_VE)
        scale = float(f"{float((raw_TV * plain_TV).sum() / (raw_TV * raw_TV).sum()):.3g}")
        off = float((raw_TV * scale - plain_TV).abs().max() / plain_TV.abs().max())
        if not off < MOST_OFF:
            raise ModelRefused(f"its logits are no multiple of its output layer's after its last norm: {off:.1%} off")
        return scale

    def score(self, reading: Reading, rows: Sequence[int], forests: Sequence[Forest]) -> list[Chances]:
        """Score forests whose roots are the tokens row+1 of a text, in one packed forward after the cached text."""
        segments = [
            Segment(self._fork(reading.rows, row + 2, len(inner)), *_inner_nodes(forest, inner))
            for row, forest in zip(rows, forests, strict=True)
            for inner in [forest.inner]
        ]
        try:
            running = [segment for segment in segments if len(segment.tokens)]
            logits_RV = self.model.forward(pack(running, self._cache.store)) if running else reading.logits_TV[:0]
        finally:
            for segment in segments:
                self._cache.pool.release(segment.rows.table)
        parts = torch.split(logits_RV, [len(segment.tokens) for segment in segments])
        return [
            _chances(forest, torch.cat((reading.logits_TV[row + 1, None], part)))
            for row, forest, part in zip(rows, forests, parts, strict=True)
        ]

    def _fork(self, rows: KvRows, num_shared: int, num_own: int) -> KvRows:
        return self._cache.fork(KvRows(rows.table, num_shared), num_shared + num_own)


def _product(hidden_TE: Tensor, output_WE: Tensor) -> Tensor:
    """float32 [T, W], multiplied in the dtype of the output layer."""
    return (hidden_TE.to(output_WE.dtype) @ output_WE.T).float()


def _inner_nodes(forest: Forest, inner: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """int32: tokens and parents of the nodes with children, renumbered without the others."""
    parents = forest.parents[inner]
    among = np.where(parents < 0, -1, np.searchsorted(inner, parents))
    return forest.tokens[inner].astype(np.int32), among.astype(np.int32)


def _chances(forest: Forest, logits_RV: Tensor) -> Chances:
    """The target's probabilities of a forest's nodes. logits_RV: of the root, then of each inner node."""
    after = np.where(forest.parents < 0, 0, np.searchsorted(forest.inner, forest.parents) + 1)
    rows, tokens = (torch.from_numpy(each).to(logits_RV.device) for each in (after, forest.tokens))
    probabilities = logits_RV.double().softmax(-1)[rows, tokens]
    is_likeliest = logits_RV.argmax(-1)[rows] == tokens
    return Chances(probabilities.cpu().numpy(), is_likeliest.cpu().numpy())


def _weights_of(layer: nn.Module, model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a decoder layer by their names, norms as factors."""
    found = {name: weight.detach() for name, weight in layer.named_parameters()}
    scales = {f"{name}.weight": _scale_of(module, model) for name, module in layer.named_children()}
    return found | {name: scale_E for name, scale_E in scales.items() if scale_E is not None}


def _scale_of(norm: Any, model: PreTrainedModel) -> Tensor | None:
    """float32 [E]: the factors of a norm of hidden states, found by its result for a row of ones, however it stores
    them. None if it is no root-mean-square norm."""
    if norm is None or not type(norm).__name__.endswith("RMSNorm"):
        return None
    ones_1E = torch.ones(1, model.get_input_embeddings().weight.shape[1], dtype=model.dtype, device=model.device)
    with torch.no_grad():
        scale_E: Tensor = norm(ones_1E)[0].float()
    return scale_E
