"""EAGLE-3's loss: rows are rolled as serving rolls them, and what they learn is what the target says."""

from __future__ import annotations

import torch

from decoding.training.heads.lessons import lesson_of
from decoding.training.heads.roll import log_probabilities, read, roll, start
from decoding.training.heads.ttt import next_ids, ttt_loss
from tests.heads import attend_causally
from tests.models import tiny
from tests.training.heads.lessons import VOCAB, answers, head_of, target_of


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
    answer = answers()[4]
    with target.reading([answer.tokens]) as (reading,):
        lesson = lesson_of([answer], [reading], head)
    context = read(head, lesson.features_BTF, next_ids(lesson.tokens_BT))
    rows, steps = torch.tensor([[3, 9]]), torch.tensor([[[7, 11, 13]], [[2, 4, 6]]])
    way = start(context, rows)
    for step in range(3):
        way = roll(head, context, way, steps[None, :, 0, step])
    for place, row in enumerate(rows[0].tolist()):
        ids = torch.cat((next_ids(lesson.tokens_BT)[:, : row + 1], steps[place]), 1)
        hidden = head.fuse(lesson.features_BTF[:, : row + 1])
        for length in range(row + 1, ids.shape[1] + 1):
            positions = torch.arange(length)[None]
            own = head(ids[:, :length], hidden, positions, attend_causally)
            hidden = torch.cat((hidden, own[:, -1:]), 1)
        torch.testing.assert_close(way.hidden_BRE[0, place], own[0, -1], atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_weighted_sum_of_cross_entropies_counted_by_hand() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    pair = answers()[:2]
    with target.reading([each.tokens for each in pair]) as readings:
        lesson = lesson_of(pair, readings, head)
        context = read(head, lesson.features_BTF, next_ids(lesson.tokens_BT))
        found = ttt_loss(head, context, lesson, num_steps=2)
        expected, kept = [], set(head.target_ids.tolist())
        assert any(int(row.argmax()) not in kept for each in readings for row in each.logits_TV)
        for step in range(2):
            total, count = 0.0, 0
            for place, (answer, reading) in enumerate(zip(pair, readings, strict=True)):
                for row in range(len(answer.tokens)):
                    spoken_of = row + 2 + step  # the token that this row's distribution is of
                    if not answer.num_prompt <= spoken_of < len(answer.tokens):
                        continue
                    count += 1
                    logits = reading.logits_TV[spoken_of - 1]
                    if int(logits.argmax()) not in kept:
                        continue
                    way = start(context, torch.tensor([[row], [row]]))
                    if step:
                        way = roll(head, context, way, torch.full((2, 1), int(answer.tokens[row + 2])))
                    log_q = log_probabilities(head, way.hidden_BRE)[place, 0]
                    total -= float((logits[head.target_ids].softmax(-1) * log_q.detach()).sum())
            expected.append(total / count)
    torch.testing.assert_close(found.losses_I, torch.tensor(expected), atol=1e-5, rtol=1e-5)
    assert abs(float(found.loss.detach()) - (expected[0] + 0.8 * expected[1])) < 1e-5
