"""Runs a head over the tokens of a sequence, and then rolls it on from any of these rows along other tokens.

Owns the attention of EAGLE-3's training-time test: a rolled row sees the sequence's first-step keys up to the row that
it started from, and the keys of its own earlier steps. Trees, losses and likelihoods are all computed by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead

# Shape suffixes: B sequences, T their rows (one per token), R rows that are rolled on, H query heads, K kv heads,
# G query heads per kv head, D head width, E the draft head's width, F three target widths, W draft vocabulary.


@dataclass(frozen=True, slots=True)
class Context:
    """The first step over whole sequences: each row's hidden state, key and value."""

    hidden_BTE: Tensor
    keys_BKTD: Tensor
    values_BKTD: Tensor

    def detach(self) -> Context:
        return Context(self.hidden_BTE.detach(), self.keys_BKTD.detach(), self.values_BKTD.detach())

    def part(self, first: int, end: int) -> Context:
        """Some rows of each sequence: a text of a pack."""
        keys_BKTD, values_BKTD = self.keys_BKTD[:, :, first:end], self.values_BKTD[:, :, first:end]
        return Context(self.hidden_BTE[:, first:end], keys_BKTD, values_BKTD)


@dataclass(frozen=True, slots=True)
class Way:
    """Rolled rows: where each started, int64 [B, R]; its present hidden state; and its keys and values at each rolled
    step."""

    starts_BR: Tensor
    hidden_BRE: Tensor
    keys: tuple[Tensor, ...] = ()  # [B, K, R, D] each
    values: tuple[Tensor, ...] = ()

    def pick(self, chosen_BR: Tensor) -> Way:
        """The ways of some rows; a row may be chosen more than once."""
        keys, values = (tuple(_pick_own(step, chosen_BR) for step in steps) for steps in (self.keys, self.values))
        return Way(self.starts_BR.gather(1, chosen_BR), _pick(self.hidden_BRE, chosen_BR), keys, values)


def read(head: EagleHead, features_BTF: Tensor, next_ids_BT: Tensor) -> Context:
    """Run the first step. next_ids_BT: token i+1 for row i."""
    rows_BT = torch.arange(next_ids_BT.shape[1], device=next_ids_BT.device).expand_as(next_ids_BT)
    seen = _Attention(rows_BT)
    hidden_BTE = head(next_ids_BT, head.fuse(features_BTF), rows_BT, seen.attend_first)
    return Context(hidden_BTE, *seen.written)


def start(context: Context, rows_BR: Tensor) -> Way:
    """Ways that start at these rows, with no step rolled yet."""
    return Way(rows_BR, _pick(context.hidden_BTE, rows_BR))


def roll(head: EagleHead, context: Context, way: Way, ids_BR: Tensor) -> Way:
    """Roll one step: every row's input is its own hidden state and the embedding of its next token."""
    seen = _Attention(way.starts_BR, context, way)
    positions_BR = way.starts_BR + len(way.keys) + 1
    hidden_BRE = head(ids_BR, way.hidden_BRE, positions_BR, seen.attend_on)
    keys, values = seen.written
    return Way(way.starts_BR, hidden_BRE, (*way.keys, keys), (*way.values, values))


def log_probabilities(head: EagleHead, hidden: Tensor) -> Tensor:
    """float32 [.., W]: log probabilities of the next token, over the draft vocabulary."""
    return head.logits(hidden).float().log_softmax(-1)


@dataclass(slots=True)
class _Attention:
    """The attention of one forward of the head: what its rows see, and the keys and values that they wrote."""

    last_seen_BR: Tensor
    context: Context | None = None
    way: Way | None = None
    written: tuple[Tensor, Tensor] = field(init=False)

    def attend_first(self, queries_BHTD: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor) -> Tensor:
        self.written = (keys_BKTD, values_BKTD)
        return attend(queries_BHTD, self.written, self.last_seen_BR, (), ())

    def attend_on(self, queries_BHRD: Tensor, keys_BKRD: Tensor, values_BKRD: Tensor) -> Tensor:
        assert self.context is not None
        assert self.way is not None
        self.written = (keys_BKRD, values_BKRD)
        shared = (self.context.keys_BKTD, self.context.values_BKTD)
        own_keys, own_values = (*self.way.keys, keys_BKRD), (*self.way.values, values_BKRD)
        return attend(queries_BHRD, shared, self.last_seen_BR, own_keys, own_values)


def attend(
    queries_BHRD: Tensor,
    shared_BKTD: tuple[Tensor, Tensor],
    last_seen_BR: Tensor,
    own_keys: tuple[Tensor, ...],
    own_values: tuple[Tensor, ...],
) -> Tensor:
    """[B, R, H, D]: attention over the shared keys and values up to each row's last seen one, and over the row's own,
    [B, K, R, D] for each step."""
    keys_BKTD, values_BKTD = shared_BKTD
    num_shared = keys_BKTD.shape[2]
    num_batch, num_heads, width = len(queries_BHRD), keys_BKTD.shape[1], queries_BHRD.shape[-1]
    queries_BKGRD = queries_BHRD.reshape(num_batch, num_heads, -1, *queries_BHRD.shape[2:]) * width**-0.5
    shared_BKGRT = queries_BKGRD @ keys_BKTD[:, :, None].transpose(-1, -2)
    is_seen_BRT = torch.arange(num_shared, device=queries_BHRD.device) <= last_seen_BR[..., None]
    shared_BKGRT = shared_BKGRT.masked_fill(~is_seen_BRT[:, None, None], -torch.inf)
    own = [(queries_BKGRD * keys_BKRD[:, :, None]).sum(-1, keepdim=True) for keys_BKRD in own_keys]
    weights = torch.cat((shared_BKGRT, *own), -1).float().softmax(-1).to(values_BKTD.dtype)
    found_BKGRD = weights[..., :num_shared] @ values_BKTD[:, :, None]
    for step, values_BKRD in enumerate(own_values):
        found_BKGRD = found_BKGRD + weights[..., num_shared + step, None] * values_BKRD[:, :, None]
    return found_BKGRD.flatten(1, 2).transpose(1, 2)


def _pick(rows: Tensor, chosen_BR: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device)[:, None], chosen_BR]


def _pick_own(rows_BKRD: Tensor, chosen_BR: Tensor) -> Tensor:
    return _pick(rows_BKRD.transpose(1, 2), chosen_BR).transpose(1, 2)
