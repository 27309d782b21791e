"""Functions of torch are replaced for the time of a forward, by one mode whatever the number of tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from decoding.model.layers import activations
from decoding.model.linear import exact
from decoding.model.replacing import row_safe
from decoding.model.replacing.replacer import ReplacedFunctions


def test_a_replacement_may_leave_a_call_to_its_function() -> None:
    def of_few(input: torch.Tensor) -> torch.Tensor | None:
        return torch.exp(input) + 1 if len(input) < 3 else None

    few, many = torch.zeros(2), torch.zeros(3)
    with ReplacedFunctions({torch.exp: of_few}):
        found, left, other = torch.exp(few), torch.exp(many), torch.cos(few)
    assert (found.tolist(), left.tolist(), other.tolist()) == ([2.0, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0])
    assert torch.exp(few).tolist() == [1.0, 1.0]


def test_tables_in_one_mode_give_a_row_the_same_bits_among_any_rows() -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(45, 37), torch.randn(23, 37)

    def layer(rows: torch.Tensor) -> torch.Tensor:
        mixed = F.linear(input=rows, weight=weight)
        return F.silu(mixed) * torch.sigmoid(input=mixed) + rows[:, :1].tanh()

    expected = layer(rows)
    with ReplacedFunctions(exact.REPLACED | row_safe.REPLACED | activations.REPLACED):
        whole, parts = layer(rows), [layer(rows[start : start + 5]) for start in range(0, 23, 5)]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cat(parts), whole)
