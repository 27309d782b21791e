"""Draws a row's token, argmax(log p + g), from the per-block results of `scan`, without a sort.

A token is drawn from all tokens first; then top-k and top-p are checked for it. If they drop it, they drop every lower
place too, so the next draw is among higher places only. This finds the argmax over the kept tokens in 1 to about
1 + ln(1 / top_p) rounds, each of which reads only the few blocks that can matter.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu.sampling.places import (
    KEY_OF_INFINITY,
    KEY_OF_MINUS_INFINITY,
    NOTHING,
    load_block,
    logit_of,
    noise_of_block,
    noise_of_token,
    scaled,
    token_of,
)
from decoding.kernels.gpu.sampling.scan import (
    FLOOR,
    JOB_WORDS,
    POSITION,
    SEED,
    SOURCE,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    row_of,
)

NEAR = tl.constexpr(1e-3)  # float32 scores closer than this are compared in float64; their error is below 1e-4
FEW = tl.constexpr(64)  # tokens of a top-k that are counted one by one
UNSAID = tl.constexpr(-1)  # no token: the row is not finite, or has no token left


@triton.jit
def draw(logits, edited, jobs, numbers, bests, masses, noisy, drawn, vocab_size, num_blocks, BLOCKS: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """Draw one job's token. drawn: int32 [J]; the others as in `scan`."""
    job = tl.program_id(0).to(tl.int64)
    jobs += job * JOB_WORDS
    numbers += job * JOB_WORDS
    blocks = tl.arange(0, BLOCKS)
    at, is_block = job * num_blocks + blocks, blocks < num_blocks
    block_bests = tl.load(bests + at, mask=is_block, other=NOTHING)
    winner = tl.max(block_bests, 0)
    key = winner >> 32
    is_sound = (key > KEY_OF_MINUS_INFINITY) & (key < KEY_OF_INFINITY)
    temperature = tl.load(numbers + TEMPERATURE)
    if is_sound & (temperature > 0):
        row = row_of(tl.load(jobs + SOURCE), logits, edited, vocab_size)
        gaps = (logit_of(block_bests).to(tl.float64) - logit_of(winner).to(tl.float64)) / temperature
        parts = tl.load(masses + 2 * at + 1, mask=is_block, other=0.0)
        mass = tl.sum(parts.to(tl.float64) * tl.exp(gaps.to(tl.float32)).to(tl.float64), 0)
        reaches = tl.load(noisy + at, mask=is_block, other=-float("inf")) + gaps.to(tl.float32)
        winner = _draw_kept(row, jobs, numbers, block_bests, reaches, mass, vocab_size, BLOCKS, BLOCK)
    tl.store(drawn + job, tl.where(is_sound, token_of(winner), UNSAID))


@triton.jit
def _draw_kept(row, job, numbers, block_bests, reaches, mass, vocab_size, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """The place of the drawn token. reaches: float32 [BLOCKS], no score in a block exceeds it by NEAR. mass: the row's,
    relative to its best token."""
    best = tl.max(block_bests, 0)
    temperature, top_p = tl.load(numbers + TEMPERATURE), tl.load(numbers + TOP_P)
    floor = _floor(best, temperature, tl.load(numbers + FLOOR))
    most_ahead, needed = tl.load(job + TOP_K), mass * top_p
    if most_ahead == 0:
        most_ahead += vocab_size
    elif top_p < 1:
        if most_ahead <= FEW:
            last = _place_of_low_rank(row, block_bests, most_ahead, vocab_size, BLOCKS, BLOCK)
        else:
            last = _place_of_rank(row, block_bests, most_ahead, temperature, vocab_size, BLOCKS, BLOCK)
        _, mass = _ahead(row, block_bests, last, best, temperature, vocab_size, BLOCKS, BLOCK)
        floor, needed = tl.maximum(floor, last + 1), mass * top_p
    is_filtered = (most_ahead < vocab_size) | (top_p < 1)
    winner, is_kept = best, 0
    while is_kept == 0:
        winner, reaches = _draw_from(row, job, best, temperature, floor, reaches, vocab_size, BLOCKS, BLOCK)
        is_kept = 1
        if is_filtered:
            count, ahead = _ahead(row, block_bests, winner, best, temperature, vocab_size, BLOCKS, BLOCK)
            is_kept = ((count < most_ahead) & ((ahead < needed) | (top_p >= 1))).to(tl.int32)
            floor = winner + 1
    return winner


@triton.jit
def _draw_from(row, job, best, temperature, floor, reaches, vocab_size, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """The place of the greatest score among places of at least `floor`, and the lowered reaches.

    Blocks are read in order of their reach, and none that cannot reach the best score found so far.
    """
    blocks = tl.arange(0, BLOCKS)
    seed, position = tl.load(job + SEED), tl.load(job + POSITION).to(tl.int32)
    unread = reaches
    winner, most = best * 0 + NOTHING, temperature * 0 - float("inf")
    reach = tl.max(unread, 0)
    while (reach > -float("inf")) & (reach + NEAR >= most):
        block = tl.argmax(unread, 0)
        x, places = load_block(row, block, vocab_size, BLOCK)
        scores = scaled(x - logit_of(best), temperature) + noise_of_block(seed, position, block, BLOCK)
        scores = tl.where(places >= floor, scores, -float("inf"))
        highest = tl.max(scores, 0)
        score = highest
        while (score > -float("inf")) & (score + NEAR >= highest) & (score + NEAR >= most):
            place = tl.max(tl.where(scores == score, places, NOTHING), 0)
            exact = (logit_of(place).to(tl.float64) - logit_of(best).to(tl.float64)) / temperature
            exact += noise_of_token(seed, position, token_of(place))
            if exact > most:
                winner, most = place, exact
            scores = tl.where(places == place, -float("inf"), scores)
            score = tl.max(scores, 0)
        reaches = tl.where(blocks == block, highest, reaches)
        unread = tl.where(blocks == block, -float("inf"), unread)
        reach = tl.max(unread, 0)
    return winner, reaches


@triton.jit
def _ahead(row, block_bests, place, best, temperature, vocab_size, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of tokens with a greater place (int64), and their mass relative to the best token (float64)."""
    blocks = tl.arange(0, BLOCKS)
    count, mass = best * 0, temperature * 0
    nearest = tl.max(block_bests, 0)
    while nearest > place:
        block = token_of(nearest) // BLOCK
        x, places = load_block(row, block, vocab_size, BLOCK)
        weights = tl.exp(scaled(x - logit_of(best), temperature))
        count += tl.sum((places > place).to(tl.int64), 0)
        mass += tl.sum(tl.where(places > place, weights, 0.0), 0).to(tl.float64)
        block_bests = tl.where(blocks == block, NOTHING, block_bests)
        nearest = tl.max(block_bests, 0)
    return count, mass


@triton.jit
def _place_of_low_rank(row, block_bests, rank, vocab_size, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """The same as `_place_of_rank`, for a few tokens: the best one is taken off until the `rank`-th is the best, and
    each time one block is read."""
    blocks = tl.arange(0, BLOCKS)
    place = tl.max(block_bests, 0)
    left = rank
    while (left > 1) & (place > NOTHING):
        block = token_of(place) // BLOCK
        _, places = load_block(row, block, vocab_size, BLOCK)
        following = tl.max(tl.where(places < place, places, NOTHING), 0)
        block_bests = tl.where(blocks == block, following, block_bests)
        place = tl.max(block_bests, 0)
        left -= 1
    return tl.where(place > NOTHING, place - 1, place)


@triton.jit
def _place_of_rank(row, block_bests, rank, temperature, vocab_size, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """A place that exactly `rank` tokens lie above, by bisection. It starts just below the `rank`-th best block's best
    place, which at least `rank` tokens lie above."""
    low, high = tl.max(block_bests, 0) * 0 + NOTHING, tl.max(block_bests, 0)
    best = high
    bests = block_bests
    left = rank
    while (left > 0) & (tl.max(bests, 0) > NOTHING):
        low = tl.max(bests, 0) - 1
        bests = tl.where(bests == low + 1, NOTHING, bests)
        left -= 1
    if left > 0:
        low = NOTHING
    count = rank + 1
    while (count != rank) & (low + 1 < high):
        place = (low >> 1) + (high >> 1) + (low & high & 1)
        count, _ = _ahead(row, block_bests, place, best, temperature, vocab_size, BLOCKS, BLOCK)
        if count >= rank:
            low = place
        else:
            high = place
    return low


@triton.jit
def _floor(best, temperature, least):
    """The lowest place whose score without noise is at least `least` in float64, by bisection."""
    low, high = best * 0 + KEY_OF_MINUS_INFINITY, best >> 32  # a key whose score is below `least`, and one whose is not
    if least == -float("inf"):
        high = low
    while low + 1 < high:
        key = (low + high) >> 1
        score = (logit_of(key << 32).to(tl.float64) - logit_of(best).to(tl.float64)) / temperature
        if score >= least:
            high = key
        else:
            low = key
    return high << 32
