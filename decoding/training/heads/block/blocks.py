"""Runs a block head from many tokens of a sequence at once, and its loss.

Knows nothing of optimizers or data. Invariant: the rows of a block see the tokens before its root and one another, as
serving has it, and never a token that is to be named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.network import Attend
from decoding.training.heads.options import TTT_DECAY
from decoding.training.heads.texts.answers import Answer
from decoding.training.heads.ttt import Lesson, TttLoss

# Shape suffixes: B sequences, T their tokens, F features of a token, A blocks of a sequence, N rows of a block, I
# places that a block names, R rows of all blocks of a sequence (A * N), E width, V vocabulary, H query heads,
# K kv heads, D head width, X keys of a sequence and of its blocks (T + R).


@dataclass(frozen=True, slots=True)
class PaddedLesson:
    """Texts padded at their ends, and the target's distributions.

    tokens_BT: int64. features_BTF. wanted_BTV: the target's probabilities after each token. is_learned_BT: bool,
    whether the next token belongs to the answer.
    """

    tokens_BT: Tensor
    features_BTF: Tensor
    wanted_BTV: Tensor
    is_learned_BT: Tensor

    @classmethod
    def of(cls, lesson: Lesson) -> PaddedLesson:
        """A pack's texts one below the other."""
        padding = lesson.padding
        parts = (lesson.tokens_T, lesson.features_TF.float(), lesson.wanted_TW, lesson.is_learned_T)
        shape = padding.num_texts, padding.longest
        flat = (each.new_zeros((shape[0] * shape[1], *each.shape[1:])) for each in parts)
        filled = (zeros.index_copy(0, padding.slots_T, each) for zeros, each in zip(flat, parts, strict=True))
        return cls(*(each.view(*shape, *each.shape[1:]) for each in filled))


def draw_roots(answers: Sequence[Answer], count: int, seed: tuple[int, ...]) -> Tensor:
    """int64 [B, A]: of each answer the places of so many tokens to begin blocks at, from the prompt's last one on. In a
    shorter answer some come again."""
    random = np.random.default_rng(seed)
    drawn = [random.integers(max(1, each.num_prompt - 1), len(each.tokens) - 1, count) for each in answers]
    return torch.from_numpy(np.stack(drawn))


def name_blocks(head: BlockHead, tokens_BT: Tensor, features_BTF: Tensor, roots_BA: Tensor) -> Tensor:
    """[B, A, I, E]: hidden states that speak of the places after each root."""
    num_batch, num_rows = len(tokens_BT), head.config.block_len
    positions_BR = (roots_BA[..., None] + torch.arange(num_rows, device=roots_BA.device)).flatten(1)
    ids_BR = torch.full_like(positions_BR, head.config.mask_token_id)
    ids_BR[:, ::num_rows] = tokens_BT.gather(1, roots_BA)
    places_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand(num_batch, -1)
    made = head.keys_and_values(head.fuse(features_BTF), places_BT)
    attend_in = _attention(head, made, roots_BA, positions_BR)
    return head(ids_BR, positions_BR, attend_in).unflatten(1, (-1, num_rows))[:, :, num_rows - head.config.num_places :]


def block_loss(head: BlockHead, lesson: PaddedLesson, roots_BA: Tensor) -> TttLoss:
    """Cross-entropy with the target's distribution at each place, as far as the answer goes: place i counts 0.8^i. A
    correction is of the answer's own token before the place."""
    hidden_BAIE = name_blocks(head, lesson.tokens_BT, lesson.features_BTF, roots_BA)
    num_places, last = hidden_BAIE.shape[2], lesson.tokens_BT.shape[1] - 1
    rows_BAI = roots_BA[..., None] + torch.arange(num_places, device=roots_BA.device)
    sequences = torch.arange(len(roots_BA), device=roots_BA.device)[:, None, None]
    inside_BAI = rows_BAI.clamp(max=last)
    learned_BAI = lesson.is_learned_BT[sequences, inside_BAI] & (rows_BAI <= last)
    wanted_BAIV = lesson.wanted_BTV[sequences, inside_BAI]
    logits_BAIV = head.logits(hidden_BAIE)
    if head.markov_head is not None:
        logits_BAIV = logits_BAIV + head.markov_head.of_all(lesson.tokens_BT[sequences, inside_BAI])
    log_q = logits_BAIV.float().log_softmax(-1)
    counts_I = learned_BAI.sum((0, 1)).clamp(min=1)
    losses_I = (-(wanted_BAIV * log_q).sum(-1) * learned_BAI).sum((0, 1)) / counts_I
    agreements_I = ((log_q.argmax(-1) == wanted_BAIV.argmax(-1)) & learned_BAI).sum((0, 1)) / counts_I
    weights_I = TTT_DECAY ** torch.arange(num_places, device=losses_I.device)
    return TttLoss((weights_I * losses_I).sum(), losses_I.detach(), agreements_I.detach())


def _attention(
    head: BlockHead, made: list[tuple[Tensor, Tensor]], roots_BA: Tensor, positions_BR: Tensor
) -> Callable[[int], Attend]:
    num_rows, num_tokens = head.config.block_len, made[0][0].shape[2]
    places_T = torch.arange(num_tokens, device=roots_BA.device)
    before_BRT = (places_T < roots_BA[..., None]).repeat_interleave(num_rows, dim=1)
    blocks_R = torch.arange(positions_BR.shape[1], device=roots_BA.device) // num_rows
    own_BRR = (blocks_R[:, None] == blocks_R).expand(len(roots_BA), -1, -1)
    keys_at = torch.cat((places_T.expand(len(roots_BA), -1), positions_BR), dim=1)
    ahead_BRX = keys_at[:, None] - positions_BR[..., None]

    def attend_in(index: int) -> Attend:
        seen_BRX = torch.cat((before_BRT, own_BRR), dim=-1)
        if head.config.are_causal[index]:
            seen_BRX = seen_BRX & (ahead_BRX <= 0)
        if window := head.config.windows[index]:
            seen_BRX = seen_BRX & (ahead_BRX.abs() < window)

        def attend(query_BHRD: Tensor, key_BKRD: Tensor, value_BKRD: Tensor) -> Tensor:
            keys_BKTD, values_BKTD = made[index]
            out_BHRD = functional.scaled_dot_product_attention(
                query_BHRD,
                torch.cat((keys_BKTD, key_BKRD), dim=2),
                torch.cat((values_BKTD, value_BKRD), dim=2),
                attn_mask=seen_BRX[:, None],
                enable_gqa=True,
            )
            return out_BHRD.transpose(1, 2)

        return attend

    return attend_in
