"""What a block of 11 bytes means: a scale, then 24 integers of three bits, the lowest bits first; 4 stands for zero."""

import torch

from decoding.weights.groups import Parts


def three_bits(blocks: torch.Tensor) -> Parts:
    scales = blocks[:, :2].contiguous().view(torch.float16).float()
    bits = blocks[:, 2:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    codes = (bits.reshape(len(blocks), 24, 3) << torch.arange(3, dtype=torch.uint8)).sum(2, dtype=torch.uint8)
    return codes, scales, 4 * scales
