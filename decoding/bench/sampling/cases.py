"""Random steps for a sampler: rows of many shapes, and sequences with any sampling options."""

from __future__ import annotations

import numpy as np
import torch

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree
from decoding.sampling.asked import Asked
from decoding.sampling.law import law_of
from decoding.sampling.logits_processors import processors_of

MAX_NODES = 12
PROMPT_LEN, REPLY_LEN = 20, 12  # tokens


def random_step(rng: np.random.Generator, vocab_size: int, num_rows: int) -> tuple[torch.Tensor, list[Asked]]:
    """float32 [R, V] with about `num_rows` rows, and the requests of their sequences, most of them plain steps."""
    asked: list[Asked] = []
    first = 0
    while first < num_rows:
        num_nodes = int(rng.integers(2, MAX_NODES + 1)) if rng.random() < 0.05 else 1
        asked.append(_asked(rng, vocab_size, first, num_nodes))
        first += asked[-1].num_rows
    rows = [_row(rng, vocab_size) for _ in range(first)]
    for each in asked:
        if each.tree is not None:  # make drafted tokens likely, so that walks accept some
            for node in range(1, len(each.tree)):
                rows[each.first_of_tree + each.tree.parents[node]][each.tree.tokens[node]] += 12
    return torch.from_numpy(np.stack(rows)), asked


def _row(rng: np.random.Generator, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A row of logits: like a model's, or flat, or sharp, or with many ties, or with impossible tokens."""
    row = rng.standard_normal(vocab_size).astype(np.float32) * np.float32(rng.choice([0.0, 0.5, 2, 4, 10]))
    kind = rng.integers(4)
    if kind == 0:
        row = np.round(row * 2) / 2
    elif kind == 1:
        row[rng.integers(vocab_size, size=20)] += rng.gamma(2, 4, 20).astype(np.float32)
    elif kind == 2 and rng.random() < 0.3:
        row[rng.random(vocab_size) < 0.5] = -np.inf
        row[rng.integers(vocab_size)] = 1.0
    return row


def _asked(rng: np.random.Generator, vocab_size: int, first: int, num_nodes: int) -> Asked:
    sampling = random_sampling(rng, vocab_size)
    prompt = rng.integers(0, vocab_size, PROMPT_LEN).astype(np.int32)
    request = Request(
        id=str(first), prompt=prompt, sampling=sampling, speculation=SpeculationParams(),
        eos_token_ids=frozenset({1, 2}), resumed=rng.integers(3, min(40, vocab_size), REPLY_LEN).astype(np.int32),
    )  # fmt: skip
    processors = processors_of(request, vocab_size, None)
    num_chunk = int(rng.integers(1, 3)) if rng.random() < 0.1 else 0
    wants_scores = num_chunk > 0 and sampling.prompt_logprobs is not None
    return Asked(
        request, law_of(request.sampling), first, num_chunk + num_nodes,
        random_tree(rng, vocab_size, num_nodes), processors,
        10 if rng.random() < 0.2 else 0, prompt[:num_chunk] if wants_scores else prompt[:0], 0, request.num_tokens,
    )  # fmt: skip


def random_tree(rng: np.random.Generator, vocab_size: int, num_nodes: int) -> DraftTree:
    """A random tree over few different tokens, with distinct siblings."""
    tokens, parents, edges = [0], [-1], set()
    while len(tokens) < num_nodes:
        edge = int(rng.integers(len(tokens))), int(rng.integers(min(30, vocab_size)))
        if edge not in edges:
            edges.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(len(tokens), np.int8))


def random_sampling(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    """Random parameters: a quarter is greedy; the others have each filter, penalty and list in about a third."""

    def maybe(value: float, otherwise: float, chance: float = 0.35) -> float:
        return value if rng.random() < chance else otherwise

    ids = [int(token) for token in rng.integers(0, min(60, vocab_size), 40)]
    return SamplingParams(
        max_tokens=64,
        temperature=maybe(0.0, float(rng.choice([0.05, 0.6, 0.8, 1.0, 1.3, 5.0])), 0.25),
        top_k=int(maybe(int(rng.choice([1, 2, 7, 20, 50, 300, vocab_size])), 0)),
        top_p=maybe(float(rng.choice([0.05, 0.5, 0.8, 0.9, 0.95, 0.999])), 1.0),
        min_p=maybe(float(rng.choice([0.001, 0.05, 0.3, 1.0])), 0.0, 0.25),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        min_tokens=int(maybe(REPLY_LEN + 2, 0, 0.1)),
        presence_penalty=maybe(0.7, 0.0, 0.15),
        frequency_penalty=maybe(-0.3, 0.0, 0.15),
        repetition_penalty=maybe(1.3, 1.0, 0.15),
        logit_bias=dict(zip(ids[:8], rng.uniform(-9, 9, 8).tolist(), strict=True)) if rng.random() < 0.15 else {},
        bad_words=((ids[0],), (ids[1], ids[2])) if rng.random() < 0.1 else (),
        allowed_token_ids=tuple(ids) if rng.random() < 0.15 else None,
        logprobs=int(rng.choice([0, 5, 20])) if rng.random() < 0.1 else None,
        prompt_logprobs=3 if rng.random() < 0.2 else None,
    )
