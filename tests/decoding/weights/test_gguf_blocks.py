"""Each number format is what ggml's own reference makes of the same bytes."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from decoding.weights.groups import dequantized, groups_of
from decoding.weights.kinds import KINDS

BLOCKS = [name for name, kind in KINDS.items() if kind.number is not None and not kind.is_float]
# Where each format keeps its float16 numbers, whose bits are not to be random: they would be infinite.
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}


def random_rows(name: str, num_rows: int, num_blocks: int, exponents: tuple[int, int]) -> np.ndarray:
    random = np.random.default_rng(len(name) * 7 + num_rows)
    num_bytes = KINDS[name].num_bytes
    blocks = random.integers(0, 256, (num_rows * num_blocks, num_bytes), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(1, 252, len(blocks))
    for place in () if name == "MXFP4" else HALVES.get(name, (0,)):
        scales = random.choice((-1, 1), len(blocks)) * np.exp2(random.uniform(*exponents, len(blocks)))
        blocks[:, place : place + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("exponents", [(-8, -4), (-24, 15)], ids=["usual", "wild"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_format_is_what_the_reference_makes_of_it(name: str, exponents: tuple[int, int]) -> None:
    rows = random_rows(name, 5, 3, exponents)
    expected = dequantize(rows, gguf.GGMLQuantizationType[name])
    kind = KINDS[name]
    parts = kind.unpack()(torch.from_numpy(rows).reshape(-1, kind.num_bytes))
    groups = groups_of(parts, len(rows), kind.bits, kind.group)
    assert int(groups.codes_OI.max()) < 2**groups.bits
    assert groups.has_units == (kind.scale_bytes == 1)
    found = dequantized(groups).numpy()
    assert found.shape == expected.shape
    bound = np.repeat((groups.scales_OG.abs() * 2**groups.bits + groups.minima_OG.abs()).numpy(), groups.group, 1)
    assert (np.abs(found - expected) <= 2e-7 * bound).all()  # the rounding of one product and one difference


def test_sizes_and_names_are_those_of_the_reference() -> None:
    for kind in KINDS.values():
        if kind.number is not None:
            assert gguf.GGMLQuantizationType(kind.number).name == kind.name
            assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind.number)] == (kind.values, kind.num_bytes)
