"""EAGLE-3's loss with training-time test: from every row the head is rolled seven steps on its own features.

Runs a pack of texts at once, without a loop over them. Knows nothing of optimizers or files.
Invariant: step i of row t learns the target's distribution after token t+1+i of the same text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.merged_attention import Padding, causal, merged
from decoding.training.heads.options import TTT_DECAY, TTT_STEPS
from decoding.training.heads.roll import Context
from decoding.training.heads.texts.packs import Pack, Places
from decoding.training.heads.vocabulary_loss import vocabulary_loss

# Shape suffixes: T tokens of a pack, F three target widths, W draft vocabulary, I steps, R rows that are rolled,
# A texts, L tokens of the longest, H query heads, K kv heads, D head width, E the head's width.


@dataclass(frozen=True, slots=True)
class Lesson:
    """A pack, and what the target knew of it, on the head's device.

    tokens_T, next_T: int64, the second the token after each, 0 after a text's last. offsets_T: int64, places in their
    texts. features_TF. wanted_TW: the target's probabilities after each token, over the draft vocabulary only.
    is_learned_T: bool, whether the next token belongs to the answer. is_known_T: bool, whether in addition the target's
    most likely token is in the draft vocabulary.
    """

    tokens_T: Tensor
    next_T: Tensor
    offsets_T: Tensor
    features_TF: Tensor
    wanted_TW: Tensor
    is_learned_T: Tensor
    is_known_T: Tensor
    padding: Padding
    steps: Steps


@dataclass(frozen=True, slots=True)
class Steps:
    """rolled_R: int64, the rows that some step learns from. ahead_IR: int64, the rows t+1+i whose distributions they
    learn; inside_IR: bool, whether the text has these."""

    rolled_R: Tensor
    ahead_IR: Tensor
    inside_IR: Tensor

    @classmethod
    def of(cls, places: Places, num_steps: int, device: torch.device) -> Steps:
        """Prompts are not rolled, but for their last rows, which speak of the answer."""
        learned_T, ends_T = places.is_learned_T, places.ends_T
        rows_IT = np.arange(len(ends_T)) + 1 + np.arange(num_steps)[:, None]
        inside_IT = rows_IT < ends_T
        inside_IT &= learned_T[np.minimum(rows_IT, len(ends_T) - 1)]
        rolled_R = np.flatnonzero(inside_IT.any(0))
        ahead_IR = np.minimum(rows_IT, ends_T - 1)[:, rolled_R]
        return cls(*(torch.from_numpy(each).to(device) for each in (rolled_R, ahead_IR, inside_IT[:, rolled_R])))


@dataclass(frozen=True, slots=True)
class TttLoss:
    """loss: the sum over steps of 0.8^i times each step's loss. losses_I, agreements_I: float32, for each step, without
    gradient; an agreement is the share of learned rows where the head's most likely token is the target's."""

    loss: Tensor
    losses_I: Tensor
    agreements_I: Tensor


def lesson_of(
    pack: Pack, features_TF: Tensor, wanted_TW: Tensor, is_drafted_T: Tensor, num_steps: int = TTT_STEPS
) -> Lesson:
    """is_drafted_T: bool, whether the target's likeliest token after each is in the draft vocabulary."""
    device, places = features_TF.device, Places.of(pack)
    tokens_T = np.concatenate(pack.texts).astype(np.int64)
    has_next_T = np.arange(len(tokens_T)) + 1 < places.ends_T
    next_T = np.where(has_next_T, np.roll(tokens_T, -1), 0)
    named = (tokens_T, next_T, places.offsets_T, places.is_learned_T)
    tokens, following, offsets, learned = (torch.from_numpy(each).to(device) for each in named)
    padding = Padding.of(places.texts_T, places.offsets_T, device)
    steps = Steps.of(places, num_steps, device)
    return Lesson(tokens, following, offsets, features_TF, wanted_TW, learned, learned & is_drafted_T, padding, steps)


def read_pack(head: EagleHead, lesson: Lesson) -> Context:
    """The first step over all texts of a pack, side by side in one sequence."""
    written: list[Tensor] = []

    def attend(queries_1HTD: Tensor, keys_1KTD: Tensor, values_1KTD: Tensor) -> Tensor:
        written.extend((keys_1KTD, values_1KTD))
        keys, values = _padded(keys_1KTD, values_1KTD, queries_1HTD.shape[1], lesson)
        return causal(_rows(queries_1HTD), keys, values, lesson.padding)[None]

    hidden_1TE = head.fuse(lesson.features_TF[None].to(head.fc.weight.dtype))
    hidden_1TE = head(lesson.next_T[None], hidden_1TE, lesson.offsets_T[None], attend)
    return Context(hidden_1TE, *written)


def ttt_loss(head: EagleHead, context: Context, lesson: Lesson) -> TttLoss:
    """Cross-entropy with the target's distribution over the answers' rows. Rows whose most likely token is outside the
    draft vocabulary are counted but not learned, as in EAGLE's trainer. context: of `read_pack`."""
    steps, num_heads = lesson.steps, head.spec.num_query_heads
    shared = _padded(context.keys_BKTD, context.values_BKTD, num_heads, lesson)
    slots_R, hidden_1RE = lesson.padding.slots_T[steps.rolled_R], context.hidden_BTE[:, steps.rolled_R]
    offsets_R, own_keys, own_values = lesson.offsets_T[steps.rolled_R], list[Tensor](), list[Tensor]()
    losses, agreements = [], []

    def attend(queries_1HRD: Tensor, keys_1KRD: Tensor, values_1KRD: Tensor) -> Tensor:
        own_keys.append(_rows(keys_1KRD))
        own_values.append(_rows(values_1KRD))
        own = torch.stack(own_keys), torch.stack(own_values)
        return merged(_rows(queries_1HRD), shared, own, lesson.padding, slots_R)[None]

    for step, (ahead_R, inside_R) in enumerate(zip(steps.ahead_IR, steps.inside_IR, strict=True)):
        if step:
            ids_1R = lesson.tokens_T[ahead_R][None]
            hidden_1RE = head(ids_1R, hidden_1RE, offsets_R[None] + step, attend)
        count = inside_R.sum().clamp(min=1)
        factors_R = (inside_R & lesson.is_known_T[ahead_R]).float() / count
        normed_1RE = head.normed(hidden_1RE)
        loss, agreed = vocabulary_loss(normed_1RE[0], head.lm_head.weight, lesson.wanted_TW, ahead_R, factors_R)
        losses.append(loss)
        agreements.append(agreed)
    losses_I = torch.stack(losses)
    weights_I = TTT_DECAY ** torch.arange(len(losses), device=losses_I.device)
    return TttLoss((weights_I * losses_I).sum(), losses_I.detach(), torch.stack(agreements).detach())


def _rows(rows_1HRD: Tensor) -> Tensor:
    """[R, H, D], in the type of products."""
    device = rows_1HRD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows_1HRD.dtype
    return rows_1HRD[0].transpose(0, 1).to(dtype)


def _padded(keys_1KTD: Tensor, values_1KTD: Tensor, num_heads: int, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """[A, H, L, D] each: a copy for every query head."""
    each = num_heads // keys_1KTD.shape[1]
    padding = lesson.padding
    keys, values = (
        padding.pad(_rows(rows), padding.slots_T).repeat_interleave(each, dim=1) for rows in (keys_1KTD, values_1KTD)
    )
    return keys, values
