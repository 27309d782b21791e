"""GGUF's kinds unpacked: blocks of bytes, uint8 [N, bytes], to groups of small integers, a function a kind.

Formats: ggml's `block_*` structures and dequantize_row_* functions (ggml-common.h, ggml-quants.c). Knows no file.
Invariant: scale * code - minimum is what ggml computes, up to the rounding of one float32 product.
"""

from __future__ import annotations

import torch

from decoding.kernels.cpu import gguf_codes
from decoding.kernels.cpu.gguf_codes import codes_of, five_bits, four_bits, six_bits
from decoding.weights.groups import Parts

IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """float32 [N, 1]: a float16 of each block."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., W] to [..., 2 W]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _centred(codes: torch.Tensor, scales: torch.Tensor, zero: int) -> Parts:
    return codes, scales, zero * scales


def q8_0(blocks: torch.Tensor) -> Parts:
    return _centred(blocks[:, 2:] ^ 128, _half(blocks, 0), 128)  # a signed byte and 128


def q4_0(blocks: torch.Tensor) -> Parts:
    return _centred(codes_of(four_bits, blocks, 32), _half(blocks, 0), 8)


def q4_1(blocks: torch.Tensor) -> Parts:
    return codes_of(four_bits, blocks, 32), _half(blocks, 0), -_half(blocks, 2)


def q5_0(blocks: torch.Tensor) -> Parts:
    return _centred(codes_of(five_bits, blocks, 32), _half(blocks, 0), 16)


def q5_1(blocks: torch.Tensor) -> Parts:
    return codes_of(five_bits, blocks, 32), _half(blocks, 0), -_half(blocks, 2)


def q2_k(blocks: torch.Tensor) -> Parts:
    packed = blocks[:, 16:80].reshape(-1, 2, 1, 32)
    codes = (packed >> _shifts(0, 2, 4, 6)) & 3
    factors = blocks[:, :16]
    return codes.reshape(-1, 256), _half(blocks, 80) * (factors & 15), _half(blocks, 82) * (factors >> 4)


def q3_k(blocks: torch.Tensor) -> Parts:
    """A set bit of the mask adds 4 to a code, which stands for 4 less."""
    low = (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> _shifts(0, 2, 4, 6)) & 3
    high = (blocks[:, :32].reshape(-1, 1, 1, 32) >> _shifts(*range(8)).view(2, 4, 1)) & 1
    packed = blocks[:, 96:108]
    factors = _nibbles(packed[:, :8]) | (
        ((packed[:, 8:].reshape(-1, 1, 4) >> _shifts(0, 2, 4, 6)) & 3).reshape(-1, 16) << 4
    )
    codes = (low | high << 2).reshape(-1, 256)
    return _centred(codes, _half(blocks, 108) * (factors.float() - 32), 4)


def _six_bits(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, 8] twice: the factors of scales and minima."""
    factors = codes_of(six_bits, blocks, 16)
    return factors[:, :8], factors[:, 8:]


def _in_units(codes: torch.Tensor, blocks: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor) -> Parts:
    """Scales and minima are whole numbers, and a block begins with the unit of each."""
    scale_units, minimum_units = _half(blocks, 0), _half(blocks, 2)
    return codes, scale_units * scales, minimum_units * minima, scale_units, minimum_units


def q4_k(blocks: torch.Tensor) -> Parts:
    scales, minima = _six_bits(blocks)
    return _in_units(codes_of(gguf_codes.q4_k, blocks, 256), blocks, scales, minima)


def q5_k(blocks: torch.Tensor) -> Parts:
    scales, minima = _six_bits(blocks)
    return _in_units(codes_of(gguf_codes.q5_k, blocks, 256), blocks, scales, minima)


def q6_k(blocks: torch.Tensor) -> Parts:
    unit, zero = _half(blocks, 208), 32
    scales = unit * blocks[:, 192:208].contiguous().view(torch.int8)
    return *_centred(codes_of(gguf_codes.q6_k, blocks, 256), scales, zero), unit, zero * unit


def iq4_nl(blocks: torch.Tensor) -> Parts:
    return _centred(_looked_up(_nibbles(blocks[:, 2:]), IQ4_LEVELS), _half(blocks, 0), -min(IQ4_LEVELS))


def iq4_xs(blocks: torch.Tensor) -> Parts:
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), 2).reshape(-1, 8)
    high = (blocks[:, 2:4].reshape(-1, 2, 1) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8) & 3).reshape(-1, 8)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    scales = _half(blocks, 0) * ((low | high << 4).float() - 32)
    return _centred(_looked_up(codes, IQ4_LEVELS), scales, -min(IQ4_LEVELS))


def mxfp4(blocks: torch.Tensor) -> Parts:
    return mxfp4_parts(_nibbles(blocks[:, 1:]), blocks[:, :1])


def mxfp4_parts(codes: torch.Tensor, exponents: torch.Tensor) -> Parts:
    """codes: 0 to 15, of OCP's E2M1. exponents: of two, biased by 127. Levels are doubled, so scales are halved."""
    powers = exponents.int()
    scales = torch.where(powers < 2, 1 << powers + 21, (powers - 1) << 23).view(torch.float32)  # 2 ** (power - 128)
    return _centred(_looked_up(codes, MXFP4_LEVELS), scales, -min(MXFP4_LEVELS))


def _looked_up(codes: torch.Tensor, levels: tuple[int, ...]) -> torch.Tensor:
    table = torch.tensor([level - min(levels) for level in levels], dtype=torch.uint8)
    return table[codes.int()]


def _shifts(*bits: int) -> torch.Tensor:
    """[number, 1]: to be broadcast over bytes."""
    return torch.tensor(bits, dtype=torch.uint8)[:, None]
