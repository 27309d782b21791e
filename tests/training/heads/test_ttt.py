"""EAGLE-3's loss: rows are rolled as serving rolls them, and what they learn is what the target says."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.roll import log_probabilities, read, roll, start
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.features import Features
from decoding.training.heads.texts.packs import Pack
from decoding.training.heads.ttt import read_pack, ttt_loss
from tests.heads import attend_causally
from tests.models import tiny
from tests.training.heads.lessons import VOCAB, answers, head_of, lesson_for, target_of


def test_features_and_logits_are_those_of_the_models_own_forward() -> None:
    model = tiny("llama", vocab_size=VOCAB)
    ids = torch.from_numpy(answers()[3].tokens).long()[None]
    with torch.no_grad():
        whole = model(input_ids=ids, output_hidden_states=True)
    last: list[torch.Tensor] = []
    hook = model.model.layers[-1].register_forward_hook(lambda _module, _args, output: last.append(output))
    with torch.no_grad():
        model(input_ids=ids)
    hook.remove()
    target = target_of(model)
    head = head_of(target)
    assert head.config.feature_layers == (1, 2, 3)
    expected = torch.cat([whole.hidden_states[1][0], whole.hidden_states[2][0], last[0][0]], -1)
    with target.reading([each.tokens for each in answers()[2:4]]) as readings:
        torch.testing.assert_close(readings[1].features_TF, expected, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(readings[1].logits_TV, whole.logits[0], atol=2e-4, rtol=2e-4)


def test_a_rolled_row_is_the_last_row_of_its_way_run_as_a_chain() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    lesson = lesson_for(head, target, Pack((answers()[4],)))
    ids_1T, features_1TF = lesson.next_T[None], lesson.features_TF[None].float()
    context = read(head, features_1TF, ids_1T)
    rows, steps = torch.tensor([[3, 9]]), torch.tensor([[[7, 11, 13]], [[2, 4, 6]]])
    way = start(context, rows)
    for step in range(3):
        way = roll(head, context, way, steps[None, :, 0, step])
    for place, row in enumerate(rows[0].tolist()):
        ids = torch.cat((ids_1T[:, : row + 1], steps[place]), 1)
        hidden = head.fuse(features_1TF[:, : row + 1])
        for length in range(row + 1, ids.shape[1] + 1):
            positions = torch.arange(length)[None]
            own = head(ids[:, :length], hidden, positions, attend_causally)
            hidden = torch.cat((hidden, own[:, -1:]), 1)
        torch.testing.assert_close(way.hidden_BRE[0, place], own[0, -1], atol=1e-5, rtol=1e-5)


def by_hand(head: EagleHead, target: OnlineTarget, pack: Pack, num_steps: int) -> list[Tensor]:
    """Each step's loss, text by text and row by row, by the rolling that trees are grown with."""
    kept, totals, counts = set(head.target_ids.tolist()), [torch.tensor(0.0)] * num_steps, [0] * num_steps
    for answer in pack.answers:
        known = Features(target, None, 0).of(Pack((answer,)))
        wanted_TW = target.chances(known.hidden_TE, head.target_ids)
        ids = torch.from_numpy(np.append(answer.tokens[1:], 0).astype(np.int64))[None]
        context = read(head, known.features_TF[None].float(), ids)
        for row in range(len(answer.tokens)):
            way = start(context, torch.tensor([[row]]))
            for step in range(num_steps):
                spoken_of = row + 2 + step  # the token that this row's distribution is of
                if step and row + 1 + step < len(answer.tokens):
                    way = roll(head, context, way, torch.tensor([[int(answer.tokens[row + 1 + step])]]))
                if not answer.num_prompt <= spoken_of < len(answer.tokens):
                    continue
                counts[step] += 1
                if int(known.likeliest_T[spoken_of - 1]) in kept:
                    log_q = log_probabilities(head, way.hidden_BRE)[0, 0]
                    totals[step] = totals[step] - (wanted_TW[spoken_of - 1] * log_q).sum()
    return [total / count for total, count in zip(totals, counts, strict=True)]


def test_losses_and_gradients_of_a_pack_are_those_of_its_texts_counted_by_hand() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head, num_steps = head_of(target), 4
    pack = Pack(tuple(answers()[:3]))
    lesson = lesson_for(head, target, pack, num_steps)
    assert not lesson.is_known_T[lesson.is_learned_T].all()  # some rows speak of what the head cannot draft
    found = ttt_loss(head, read_pack(head, lesson), lesson)
    found.loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in head.named_parameters() if weight.grad is not None}
    head.zero_grad()
    expected = by_hand(head, target, pack, num_steps)
    torch.testing.assert_close(found.losses_I, torch.stack(expected).detach(), atol=1e-5, rtol=1e-5)
    loss = torch.stack([0.8**step * each for step, each in enumerate(expected)]).sum()
    torch.testing.assert_close(found.loss, loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert set(gradients) == {name for name, weight in head.named_parameters() if weight.grad is not None}
    for name, weight in head.named_parameters():
        if name in gradients:
            torch.testing.assert_close(gradients[name], weight.grad, atol=1e-5, rtol=1e-3, msg=name)


def test_texts_of_a_pack_know_nothing_of_each_other() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head, first = head_of(target), answers()[1]
    losses = []
    for other in answers()[2:4]:
        lesson = lesson_for(head, target, Pack((other, first)))
        context = read_pack(head, lesson)
        losses.append(context.hidden_BTE[0, len(other.tokens) :])
    torch.testing.assert_close(losses[0], losses[1], atol=1e-6, rtol=1e-6)
