"""The record of a kind that no file has: integers of three bits in blocks of 24, and a float16 scale."""

from decoding.weights.kinds import Kind

THREE_BITS = Kind(
    "T3",
    bits=4,  # as which three are multiplied
    group=24,
    values=24,
    num_bytes=11,
    number=99,
    unpacking="tests.decoding.weights.three_bits.unpacking:three_bits",
)
