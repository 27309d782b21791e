"""One softmax over a text's keys and a row's own, against plain arithmetic; and the calls that a GPU would be given."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from decoding.training.heads import vocabulary_loss as loss_file
from decoding.training.heads.merged_attention import Padding, _flash, _flash_backward, merged
from decoding.training.heads.vocabulary_loss import vocabulary_loss

LENGTHS, HEADS, KV_HEADS, WIDTH, STEPS = (5, 9, 1), 4, 2, 16, 3
ROLLED = [1, 4, 6, 7, 13, 14]
TEXTS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
OFFSETS = np.concatenate([np.arange(each) for each in LENGTHS])


def inputs(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, shared keys and values, own keys and values."""
    torch.manual_seed(0)
    shared = (len(LENGTHS), HEADS, max(LENGTHS), WIDTH)
    own = (STEPS, len(ROLLED), KV_HEADS, WIDTH)
    shapes = ((len(ROLLED), HEADS, WIDTH), shared, shared, own, own)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def plainly(queries: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
    rows = []
    for place, token in enumerate(ROLLED):
        text, end = int(TEXTS[token]), int(OFFSETS[token]) + 1
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            seen = torch.cat((keys[text, head, :end], own_keys[:, place, group]))
            weights = (seen @ queries[place, head] / math.sqrt(WIDTH)).softmax(0)
            rows.append(weights @ torch.cat((values[text, head, :end], own_values[:, place, group])))
    return torch.stack(rows).view(len(ROLLED), HEADS, WIDTH)


def test_results_and_gradients_are_those_of_one_softmax() -> None:
    made, padding = inputs(), Padding.of(TEXTS, OFFSETS, torch.device("cpu"))
    found = merged(made[0], (made[1], made[2]), (made[3], made[4]), padding, padding.slots_T[ROLLED])
    expected = plainly(*made)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weights = torch.randn_like(found)
    grads, wanted = (torch.autograd.grad((each * weights).sum(), made) for each in (found, expected))
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_gpu_is_given_calls_that_it_has() -> None:
    with FakeTensorMode():
        queries, keys, values = (torch.empty(3, 8, 64, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out, sums, state = _flash(queries, keys, values)
        assert (out.shape, out.dtype, sums.shape, sums.dtype) == (queries.shape, out.dtype, (3, 8, 64), torch.float32)
        grads = _flash_backward(out, queries, keys, values, out, sums, state)
        assert [grad.shape for grad in grads] == [queries.shape] * 3
        assert all(grad.device.type == "cuda" for grad in grads)


@pytest.mark.parametrize("rows_at_once", [3, 4096])
def test_the_vocabularys_loss_and_gradients_are_plain_cross_entropys(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_file, "ROWS", rows_at_once)
    torch.manual_seed(0)
    hidden, output = torch.randn(7, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    wanted, rows = torch.randn(9, 11).softmax(-1), torch.tensor([0, 3, 3, 8, 1, 5, 2])
    factors = torch.tensor([0.5, 0.0, 1.0, 0.25, 2.0, 0.0, 1.0])
    loss, agreed = vocabulary_loss(hidden, output, wanted, rows, factors)
    log_q = (hidden @ output.T).log_softmax(-1)
    expected = -((wanted[rows] * log_q).sum(-1) * factors).sum()
    torch.testing.assert_close(loss, expected)
    assert float(agreed) == float(((log_q.argmax(-1) == wanted[rows].argmax(-1)) * factors).sum())
    for one, other in zip(
        torch.autograd.grad(3 * loss, [hidden, output]),
        torch.autograd.grad(3 * expected, [hidden, output]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
