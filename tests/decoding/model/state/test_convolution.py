"""The compiled convolution gives the bits of plain torch, in trees, beside other sequences and with a bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.model.state.convolution import convolve, convolve_in_torch
from decoding.model.state.walk import walk_of
from tests.decoding.model.state.test_walk import batch_of


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_kernel_computes_what_plain_torch_does(width: int, has_bias: bool) -> None:
    trees = [(np.array([-1, 0, 0, 2, 3, 3], np.int32), 1), (np.arange(-1, 20, dtype=np.int32), 9)]
    places = walk_of(batch_of(trees)).inputs(width)
    torch.manual_seed(width)
    inputs_MC, windows_BWC = torch.randn(70, len(places)).T, torch.randn(2, width, 70)
    weight, bias = torch.randn(70, width + 1), torch.randn(70) if has_bias else None
    found, expected = (form(inputs_MC, windows_BWC, places, weight, bias) for form in (convolve, convolve_in_torch))
    assert torch.equal(found, expected)
    assert found.abs().max() > 1
