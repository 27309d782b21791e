"""A block head at work: what it makes of the target's features, in the blocks of its target, and forwards of blocks.

Knows nothing of sequences or trees. A block's own keys and values outlive no forward. Where rows are many attention is
torch's: what a head drafts need not be exact. Invariant: rows of a block see the tokens before it and the block, as its
layers' kinds say.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray
from decoding.drafting.block.block_config import BlockConfig
from decoding.drafting.block.block_step import Block
from decoding.drafting.block.fused_block import FusedBlock, fused_block
from decoding.drafting.block.network import BlockHead, Correction
from decoding.drafting.eagle.kept_features import FeatureRows
from decoding.drafting.eagle.loaded_head import LoadedHead
from decoding.drafting.eagle.network import Attend
from decoding.model.device.runner import Forward, Progress, silent, stopwatch_on
from decoding.model.target_model import TargetModel
from decoding.model.threads import use_threads

# Shape suffixes: M rows of all blocks, R rows that are asked of, N rows and padding, n rows of one block, H query
# heads, K kv heads, G = H / K, X = G * n, D head width, T keys, F features of a row, E width, V vocabulary.
STAMP_BYTES = 8
NUM_SPARE = 64  # blocks, for the rows of blocks whose sequences have no more room
TOLERANCE = 0.1  # of logits in a trial, in parts of the largest: a wrong forward is off by as much as that is large


class BlockModel(LoadedHead):
    def __init__(self, head: BlockHead, target: TargetModel) -> None:
        super().__init__(head, head.specs, target)
        self._head = head
        self.block_len, self.num_places = head.config.block_len, head.config.num_places
        self.correction: Correction | None = head.markov_head
        self._fused: FusedBlock | None = None
        self._fuses = target.attention == "exact"
        if self._fuses:
            self._fuse()

    @property
    def bytes_per_slot(self) -> int:
        """Of its keys and values, and of a stamp."""
        return bytes_per_slot(self._layers, self.dtype) + STAMP_BYTES

    def read(self, rows: FeatureRows, store: KvStore) -> None:
        """Store what it makes of these tokens."""
        fused_KE = self.fuse(rows.features_KF)
        num_tokens, positions_K = len(rows.slots), torch.from_numpy(rows.positions).to(self.device, non_blocking=True)
        slots_K = torch.from_numpy(rows.slots).to(self.device, non_blocking=True)
        with torch.inference_mode():
            made = self._head.keys_and_values(self._padded(fused_KE)[None], self._padded(positions_K)[None])
            for layer, (key_1KND, value_1KND) in enumerate(made):
                store.write(layer, key_1KND[0, :, :num_tokens], value_1KND[0, :, :num_tokens], slots_K)

    def block(self, root: int, blocks: IntArray, num_before: int) -> Block:
        """One that names what follows `root`."""
        ids = np.full(self.block_len, self._head.config.mask_token_id, np.int64)
        ids[0] = root
        return Block(ids, blocks, num_before)

    def name(self, blocks: Sequence[Block], store: KvStore) -> torch.Tensor:
        """float32 [R, V]: logits of all places after each block's root, one block after the other; none corrected by
        the token before."""
        first = self.block_len - self.num_places
        is_place = np.concatenate([np.arange(len(block.ids)) >= first for block in blocks])
        return self._run(blocks, store, np.flatnonzero(is_place))

    def runner_over(
        self,
        store: KvStore,  # noqa: ARG002 - it runs over any
        most_keys: int,  # noqa: ARG002
        most_rows: int = 0,  # noqa: ARG002
        progress: Progress = silent,  # noqa: ARG002
    ) -> BlockModel:
        """Its forwards are not captured."""
        return self

    def launch(self, batch: StepBatch) -> Forward:
        """For who measures what a round takes: tokens are read, and run as blocks."""
        stopwatch = stopwatch_on(self.device)()
        features_MF = torch.zeros(batch.num_tokens, self.width * len(self._head.config.feature_layers))
        features_MF = features_MF.to(self.device, self.dtype)
        self.read(FeatureRows(batch.write_slots_M, batch.positions_M, features_MF), batch.store)
        offsets = batch.offsets.tolist()
        blocks = [
            Block(batch.ids_M[offsets[place] : offsets[place + 1]], batch.blocks(place), int(batch.prefix_lens[place]))
            for place in range(batch.num_segments)
        ]
        logits_RV = self._run(blocks, batch.store, batch.logit_rows_R)
        stopwatch.stop()
        return Forward(logits_RV, stopwatch.seconds)

    def new_store(self, num_blocks: int) -> KvStore:
        """Keys and values of so many blocks, empty, and blocks for rows of fused forwards."""
        num_spare = NUM_SPARE if self._fuses else 0
        return KvStore(self._layers, num_blocks, self.dtype, self.device, num_spare=num_spare)

    def _fuse(self) -> None:
        """Have a few rows run as one call, where it says what the modules do."""
        fused = fused_block(self._head, self._layers)
        if fused is None:
            return
        store, generator = self.new_store(4), torch.Generator().manual_seed(0)
        features_KF = torch.randn(46, self.width * len(self._head.config.feature_layers), generator=generator)
        slots, positions = np.r_[0:37, 48:57], np.r_[0:37, 0:9]
        self.read(FeatureRows(slots, positions, features_KF.to(self.dtype)), store)
        blocks = [self.block(3, np.arange(3, dtype=np.int32), 37), self.block(7, np.array([3], np.int32), 9)]
        wanted_RV = self.name(blocks, store)
        self._fused = fused
        found_RV = self.name(blocks, store)
        if not bool((found_RV - wanted_RV).abs().max() <= TOLERANCE * wanted_RV.abs().max()):
            self._fused = None

    def _run(self, blocks: Sequence[Block], store: KvStore, rows_R: NDArray[np.int64]) -> torch.Tensor:
        use_threads(self._followed.chosen)
        num_rows = sum(len(block.ids) for block in blocks)
        with torch.inference_mode():
            found_1RV = None
            if self._fused is not None and num_rows <= self._fused.few_rows:
                found_1RV = self._fused.run(blocks, store, rows_R)
            if found_1RV is None:
                found_1RV = self._run_modules(blocks, store, rows_R)
            return self._head.scaled(found_1RV)[0].float().contiguous()

    def _run_modules(self, blocks: Sequence[Block], store: KvStore, rows_R: NDArray[np.int64]) -> torch.Tensor:
        """[1, R, V]"""
        ids_M = np.concatenate([block.ids for block in blocks])
        positions_M = np.concatenate([block.num_before + np.arange(len(block.ids)) for block in blocks])
        ids_1N, positions_1N, rows_N = (
            self._padded(torch.from_numpy(each)).to(self.device, non_blocking=True)
            for each in (ids_M, positions_M, rows_R)
        )
        attention = BlockAttention(self._head.config, self._layers, blocks, store)
        hidden_1NE = self._head(ids_1N[None], positions_1N[None], attention.in_layer)
        logits_1NV: torch.Tensor = self._head.lm_head(hidden_1NE[:, rows_N])
        return logits_1NV[:, : len(rows_R)]


class BlockAttention:
    """One forward's: of each block's rows to the tokens before it, in `store`, and to one another."""

    def __init__(
        self, config: BlockConfig, layers: Sequence[LayerSpec], blocks: Sequence[Block], store: KvStore
    ) -> None:
        self._config, self._layers, self._blocks, self._store = config, layers, blocks, store
        held = [torch.from_numpy(block.blocks[: num_blocks_for(block.num_before)].astype(np.int64)) for block in blocks]
        self._held = [each.to(store.device, non_blocking=True) for each in held]
        self._bounds = list(pairwise(np.cumsum([0, *(len(block.ids) for block in blocks)]).tolist()))
        self._masks: dict[tuple[int, int, bool], torch.Tensor | None] = {}

    def in_layer(self, index: int) -> Attend:
        """How rows attend in a layer."""
        return partial(self._attend, self._layers[index])

    def _attend(
        self, layer: LayerSpec, query_1HND: torch.Tensor, key_1KND: torch.Tensor, value_1KND: torch.Tensor
    ) -> torch.Tensor:
        """[1, N, H, D]: of padding zeros."""
        out_NHD = query_1HND.new_zeros(query_1HND.shape[2], query_1HND.shape[1], layer.value_dim)
        for place, (first, end) in enumerate(self._bounds):
            num_before = self._blocks[place].num_before
            keys_KTD, values_KTD = self._store.gather(layer.index, self._held[place], num_before)
            query_KXD = query_1HND[0, :, first:end].reshape(layer.num_kv_heads, -1, layer.key_dim)
            out_KXD = functional.scaled_dot_product_attention(
                query_KXD[None],
                torch.cat((keys_KTD, key_1KND[0, :, first:end]), dim=1)[None],
                torch.cat((values_KTD, value_1KND[0, :, first:end]), dim=1)[None],
                attn_mask=self._mask(layer, place),
                scale=layer.scaling,
            )[0]
            out_NHD[first:end] = out_KXD.view(layer.num_query_heads, end - first, -1).transpose(0, 1)
        return out_NHD[None]

    def _mask(self, layer: LayerSpec, place: int) -> torch.Tensor | None:
        """bool [G * n, T], the heads that share keys as rows; None where each row sees all."""
        window, is_causal = self._config.windows[layer.index], self._config.are_causal[layer.index]
        key = (place, window, is_causal)
        if key not in self._masks:
            block = self._blocks[place]
            seen_nT = visible(len(block.ids), block.num_before, window, is_causal=is_causal)
            mask = None if seen_nT is None else seen_nT.repeat(layer.group, 1).to(self._store.device, non_blocking=True)
            self._masks[key] = mask
        return self._masks[key]


def visible(num_rows: int, num_before: int, window: int, *, is_causal: bool) -> torch.Tensor | None:
    """bool [n, T]: which keys, of the tokens before and of the block, each of its rows sees; None for all."""
    if not is_causal and not window:
        return None
    ahead_nT = torch.arange(num_before + num_rows) - (num_before + torch.arange(num_rows))[:, None]
    seen_nT = torch.ones_like(ahead_nT, dtype=torch.bool)
    if is_causal:
        seen_nT &= ahead_nT <= 0
    if window:
        seen_nT &= ahead_nT.abs() < window
    return seen_nT
