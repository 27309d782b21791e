"""Reads every block of the vocabulary once, for its best place, masses, best noisy score and most likely tokens; then
combines a row's blocks.

A job is a row of logits to draw from or to rank; its record of JOB_WORDS words is made in `plan`.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from decoding.kernels.gpu.sampling.places import NOTHING, finite, load_block, logit_of, noise_of_block, scaled, token_of

JOB_WORDS = tl.constexpr(8)
SOURCE, IS_RANKED, SEED, POSITION, TOP_K, TEMPERATURE, TOP_P, FLOOR = (tl.constexpr(word) for word in range(8))


@triton.jit
def row_of(source, logits, edited, vocab_size):
    """The address of a job's row: row `source` of the logits, or row `-1 - source` of the edited rows if negative."""
    row = logits + source * vocab_size
    if source < 0:
        row = edited + (-1 - source) * vocab_size
    return row


@triton.jit
def scan(
    logits, edited, jobs, numbers, bests, masses, noisy, tops, vocab_size, NUM_TOP: tl.constexpr, BLOCK: tl.constexpr
):
    """Scan one block of one job's row. numbers: `jobs` as float64.

    bests: int64 [J, C], each of C blocks' best place. masses: float32 [J, C, 2], relative to the block's best: at
    temperature 1 (for a ranked job), and at the job's temperature (for one that draws with noise). noisy: float32
    [J, C], the best score with noise, relative to the block's best. tops: int64 [J, C, NUM_TOP], the best places, for a
    ranked job.
    """
    job, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = job * tl.num_programs(1) + block
    jobs += job * JOB_WORDS
    numbers += job * JOB_WORDS
    x, places = load_block(row_of(tl.load(jobs + SOURCE), logits, edited, vocab_size), block, vocab_size, BLOCK)
    best = tl.max(places, 0)
    tl.store(bests + at, best)
    below = x - finite(logit_of(best))
    temperature = tl.load(numbers + TEMPERATURE)
    if temperature > 0:
        scores = scaled(below, temperature)
        tl.store(masses + 2 * at + 1, tl.sum(tl.exp(scores), 0))
        noise = noise_of_block(tl.load(jobs + SEED), tl.load(jobs + POSITION).to(tl.int32), block, BLOCK)
        tl.store(noisy + at, tl.max(scores + noise, 0))
    if tl.load(jobs + IS_RANKED) != 0:
        tl.store(masses + 2 * at, tl.sum(tl.exp(below), 0))
        for rank in range(NUM_TOP):
            tl.store(tops + at * NUM_TOP + rank, best)
            places = tl.where(places == best, NOTHING, places)
            best = tl.max(places, 0)


@triton.jit(do_not_specialize=["first"])
def rank(ranked, bests, masses, tops, results, values, first, num_blocks, NUM_TOP: tl.constexpr, BLOCKS: tl.constexpr,
         PLACES: tl.constexpr):  # fmt: skip
    """Find a ranked row's most likely tokens. ranked: int64 [H], the rows' jobs. Writes [H, 1 + 2 NUM_TOP] to
    results[first:], whose memory `values` shows as float32: the row's mass relative to its best token, ids, logits."""
    place = tl.program_id(0)
    job = tl.load(ranked + place)
    blocks = tl.arange(0, BLOCKS)
    is_block = blocks < num_blocks
    block_bests = logit_of(tl.load(bests + job * num_blocks + blocks, mask=is_block, other=NOTHING))
    parts = tl.load(masses + 2 * (job * num_blocks + blocks), mask=is_block, other=0.0)
    best = finite(tl.max(block_bests, 0))
    at = first + place * (1 + 2 * NUM_TOP)
    tl.store(values + at, tl.sum(parts * tl.exp(block_bests - best), 0))
    slots = tl.arange(0, PLACES)
    tops += job * num_blocks * NUM_TOP
    candidates = tl.load(tops + slots, mask=slots < num_blocks * NUM_TOP, other=NOTHING)
    for slot in range(NUM_TOP):
        top = tl.max(candidates, 0)
        tl.store(results + at + 1 + slot, token_of(top))
        tl.store(values + at + 1 + NUM_TOP + slot, logit_of(top))
        candidates = tl.where(candidates == top, NOTHING, candidates)


@triton.jit(do_not_specialize=["first"])
def score(scored, drawn, logits, results, values, first, vocab_size, BLOCK: tl.constexpr):
    """Score one token in its row. scored: int64 [L, 2], the row and the token, or `-1 - job` for the token that a job
    drew. Writes [L, 2] to results[first:] as above: the token's logit and the number of higher logits."""
    place = tl.program_id(0)
    row = logits + tl.load(scored + 2 * place) * vocab_size
    token = tl.load(scored + 2 * place + 1)
    if token < 0:
        token = tl.maximum(tl.load(drawn - 1 - token), 0).to(tl.int64)
    own = tl.load(row + token)
    num_higher = 0
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(row + ids, mask=ids < vocab_size, other=-float("inf"))
        num_higher += tl.sum((x > own).to(tl.int32), 0)
    tl.store(values + first + 2 * place, own)
    tl.store(results + first + 2 * place + 1, num_higher)
