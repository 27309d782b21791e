"""A token's place in the order of its row as one int64, and its noise: shared by all kernels of the sampler.

A place is greater for a higher logit, then for a smaller id, so that every cut of `law` is one comparison. The upper 32
bits are the logit's `key_of` (see `logits_row`), the lower ones `LAST_ID` minus the id.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

KEY_OF_INFINITY = tl.constexpr(0x7F800000)
KEY_OF_NAN = tl.constexpr(0x7FC00000)  # for every NaN: above infinity, so that the row's best place shows it
KEY_OF_MINUS_INFINITY = tl.constexpr(0x807FFFFF - 2**32)
NOTHING = tl.constexpr((0x807FFFFF - 2**32) << 32)  # no token: below every token's place
LAST_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def places_of(x, ids):
    x = tl.where(x == 0.0, 0.0, x)  # -0.0 and 0.0 are equal
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), KEY_OF_NAN)
    return (key.to(tl.int64) << 32) | (ids ^ LAST_ID).to(tl.int64)


@triton.jit
def logit_of(place):
    key = (place >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(place):
    return (place & 0x7FFFFFFF).to(tl.int32) ^ LAST_ID


@triton.jit
def load_block(row, block, vocab_size, BLOCK: tl.constexpr):
    """float32 and int64 [BLOCK]: logits and places of a block; minus infinity and NOTHING after the vocabulary's
    end."""
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row + ids, mask=ids < vocab_size, other=-float("inf"))
    return x, tl.where(ids < vocab_size, places_of(x, ids), NOTHING)


@triton.jit
def finite(x):
    """The best value, to subtract from others; 0 in place of minus infinity, so that differences are no NaN."""
    return tl.where(x == -float("inf"), 0.0, x)


@triton.jit
def scaled(below, temperature):
    """float32: differences of logits divided by the temperature, which may be very low."""
    return below / tl.maximum(temperature, 1e-20).to(tl.float32)


@triton.jit
def noise_of_block(seed, position, block, BLOCK: tl.constexpr):
    """float32 [BLOCK]: `noise.gumbel` of a block's tokens, within 1e-5. A uniform u near 1 is handled as 1 - u."""
    counters = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    zeros = counters * 0
    a, b, c, d = tl.philox(seed, counters, zeros + position, zeros, zeros)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (BLOCK,))
    from_one = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32
    uniform = (words.to(tl.float32) + 0.5) * 2.0**-32
    series = from_one * (1.0 + from_one * (0.5 + from_one * (0.33333334 + from_one * 0.25)))
    return -tl.log(tl.where(from_one < 0.03125, series, -tl.log(uniform)))


@triton.jit
def noise_of_token(seed, position, token):
    """float64: `noise.gumbel` of one token."""
    a, b, c, d = tl.philox(seed, token >> 2, position, 0, 0)
    word = tl.where(token & 2 != 0, tl.where(token & 1 != 0, d, c), tl.where(token & 1 != 0, b, a))
    return -tl.log(-tl.log((word.to(tl.float64) + 0.5) * 2.0**-32))
