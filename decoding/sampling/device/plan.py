"""Lays out all that a step asks of its logits as tables for the kernels, and where each answer will be.

A job is a row of logits to draw from or to rank. Pure numpy; knows nothing of tensors. Invariant: the first jobs are
the nodes of the trees, tree after tree, so that a node and its job have the same number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.sampling_params import MAX_LOGPROBS
from decoding.core.tree import DraftTree, IntArray
from decoding.kernels.cpu.sampling.edits import Mask, Penalties
from decoding.sampling.asked import Asked
from decoding.sampling.device.tree_edits import TreeEdits
from decoding.sampling.law import Law
from decoding.sampling.logits_processors import Entries

Words = NDArray[np.int64]  # records for the kernels; some words are the bits of a float64
Trees = list[tuple[DraftTree, tuple[int, ...]]]  # that are drawn from, each with its walk's record
JOB_WORDS = 8  # words of a job's record, see `scan`
SOURCE, IS_RANKED, SEED, POSITION, TOP_K, TEMPERATURE, TOP_P, FLOOR = range(JOB_WORDS)
WALK_WORDS = 12  # of a walk; the last ones are `_words`
FIRST, NUM_NODES, PATH, ROW_STEP, FIRST_ROW, RANKS, TOKENS_BEFORE = range(7)  # row of node i: first + step * i
KNOWN_LAWS = 1024
ROOT_WORDS = 3  # of the results, of a walk through a tree of one node: the length of its path, the node, the token
FEW_TOP = 10  # kernels find so many most likely tokens of a row, or MAX_LOGPROBS if that is too few


def found_top(num_top: int) -> int:
    """The number of most likely tokens to find if `num_top` are wanted: one of the two that kernels are compiled
    for."""
    return FEW_TOP if num_top <= FEW_TOP else MAX_LOGPROBS


@dataclass(slots=True)
class Answers:
    """Where a sequence's answers are. walk: the number of its tree among those that are walked, None if none is; first:
    that tree's first node. ranked, scored: the first of its entries among the step's ranked rows and scored tokens.
    is_ranked: whether there are such entries. is_on_host: the host must answer instead, see `plan_step`."""

    walk: int | None = None
    first: int = 0
    ranked: int = 0
    scored: int = 0
    is_ranked: bool = False
    is_on_host: bool = False


@dataclass(slots=True)
class Plan:
    """vocab_size: of the rows. num_top: how many most likely tokens of a ranked row are found. answers: one for each
    sequence. walks_TX: a record of WALK_WORDS for each tree that is drawn from and walked; tokens_N, parents_N: of
    these, tree after tree. The lists are the kernels' tables, described there."""

    vocab_size: int
    num_top: int
    answers: Sequence[Answers] = ()
    walks_TX: Words = field(default_factory=lambda: np.empty((0, WALK_WORDS), np.int64))
    tokens_N: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    parents_N: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    jobs: list[Words] = field(default_factory=list)  # those that only rank
    ranked: list[int] = field(default_factory=list)
    scored: list[tuple[int, int]] = field(default_factory=list)
    edited: list[tuple[int, int]] = field(default_factory=list)
    changes: list[Words] = field(default_factory=list)  # the same entries for all rows of a tree
    changes_after: list[Words] = field(default_factory=list)  # one row's own entries, applied after the others
    entries: list[Words] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    num_nodes: int = 0  # of all trees
    num_jobs: int = 0
    num_entries: int = 0
    num_mask_words: int = 0
    most_nodes: int = 0  # of one tree
    first_ranked: int = 0  # order of the results: walks, ranked rows, scored tokens

    @property
    def first_scored(self) -> int:
        return self.first_ranked + len(self.ranked) * (1 + 2 * self.num_top)

    @property
    def num_results(self) -> int:
        return self.first_scored + 2 * len(self.scored)

    @property
    def is_plain(self) -> bool:
        """Whether each sequence has a tree of its root alone, which is walked: then its token is the last of its
        `ROOT_WORDS` words of the results."""
        return self.most_nodes == 1 and len(self.walks_TX) == len(self.answers)

    def following(self, places_B: NDArray[np.int64]) -> Plan:
        """Of the step after a plain one, of whose rows nothing but tokens is wanted: its sequences at these places draw
        by the same laws, a token further on each."""
        assert self.is_plain, self.most_nodes
        assert not self.ranked, "more is wanted than tokens"
        num, walks_TX = len(places_B), self.walks_TX[places_B]
        walks_TX[:, FIRST] = walks_TX[:, FIRST_ROW] = np.arange(num)
        walks_TX[:, PATH] = ROOT_WORDS * walks_TX[:, FIRST]
        walks_TX[:, ROW_STEP] = 1
        walks_TX[:, TOKENS_BEFORE] += 1
        roots = np.zeros(num, np.int32), np.full(num, -1, np.int32)
        plan = Plan(self.vocab_size, self.num_top, _plain_answers(num), walks_TX, *roots)
        plan.num_jobs = plan.num_nodes = num
        plan.most_nodes, plan.first_ranked = 1, ROOT_WORDS * num
        return plan

    def add_tree(self, asked: Asked, tree: DraftTree, is_ranked: bool, trees: Trees) -> Answers:
        """Plan a draw at each node of a tree, and its walk. is_ranked: whether anything else is wanted of its rows."""
        num_nodes = len(tree.tokens)
        source, step = asked.first + asked.num_rows - num_nodes, 1
        if asked.processors is not None:
            try:
                edits = TreeEdits(asked.processors, tree)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a panic in llguidance is not an Exception
                return Answers(is_on_host=True)
            source, step = -1 - self._add_edits(edits, source), -1
        first, path, is_ranked = self.num_jobs, self.first_ranked, is_ranked and asked.processors is None
        place = first, num_nodes, path, step, source, is_ranked, asked.position
        trees.append((tree, (*place, *_words(asked.law, self.vocab_size))))
        self.num_jobs = self.num_nodes = first + num_nodes
        self.first_ranked = path + 1 + 2 * num_nodes
        self.most_nodes = max(self.most_nodes, num_nodes)
        return Answers(len(trees) - 1, first)

    def add_ranks(self, asked: Asked, answers: Answers) -> None:
        """Plan to rank the sequence's rows and score tokens, of which some are wanted. All trees are there."""
        answers.ranked, answers.scored = len(self.ranked), len(self.scored)
        tree, num_rows = asked.tree, asked.num_rows
        if tree is None or asked.processors is not None:
            self.rank_rows(asked.first, num_rows)
        else:  # the tree's rows are drawn from unedited, so their jobs rank them as well
            self.rank_rows(asked.first, num_rows - len(tree))
            self.ranked += range(answers.first, answers.first + len(tree))
        self.scored += enumerate(asked.prompt_tokens.tolist(), asked.first + asked.first_scored)
        if asked.num_logprobs is not None and tree is not None:
            first = asked.first + num_rows - len(tree)
            self.scored += [(first + node, -1 - answers.first - node) for node in range(len(tree))]

    def rank_rows(self, first: int, num_rows: int) -> None:
        """Plan to find the most likely tokens of rows that no token is drawn from."""
        if num_rows == 0:
            return
        self.ranked += range(self.num_jobs, self.num_jobs + num_rows)
        jobs = np.zeros((num_rows, JOB_WORDS), np.int64)
        jobs[:, SOURCE], jobs[:, IS_RANKED] = np.arange(first, first + num_rows), 1
        self.jobs.append(jobs)
        self.num_jobs += len(jobs)

    def _add_edits(self, edits: TreeEdits, first_source: int) -> int:
        """Plan edited copies of a tree's rows, from `first_source` on; return the number of the first one."""
        first = len(self.edited)
        first_entry = self._add_entries(edits.entries)
        for place, (mask_W, after) in enumerate(zip(edits.masks, edits.entries_after, strict=True)):
            row, source = first + place, first_source + place
            self.edited.append((source, self._add_mask(mask_W)))
            self.changes.append(_change(row, source, first_entry, edits.entries, edits.penalties))
            if len(after.tokens_E):
                self.changes_after.append(_change(row, source, self._add_entries(after), after, edits.penalties))
        return first

    def _add_entries(self, entries: Entries) -> int:
        """Add entries; return the number of the first one."""
        self.entries.append(np.stack((entries.tokens_E, entries.counts_E, entries.biases_E.view(np.int64)), axis=1))
        self.num_entries += len(entries.tokens_E)
        return self.num_entries - len(entries.tokens_E)

    def _add_mask(self, mask_W: Mask | None) -> int:
        """Add a mask; return where its bits begin. A mask that all rows of a tree share is stored once."""
        if mask_W is None:
            return -1
        if not self.masks or self.masks[-1] is not mask_W:
            self.masks.append(mask_W)
            self.num_mask_words += len(mask_W)
        return self.num_mask_words - len(mask_W)


@cache
def _plain_answers(num_sequences: int) -> Sequence[Answers]:
    """Of so many trees of one node."""
    return tuple(Answers(place, place) for place in range(num_sequences))


@lru_cache(maxsize=KNOWN_LAWS)
def _words(law: Law, vocab_size: int) -> tuple[int, ...]:
    """The last words of a job that draws, from its seed on, but for its position."""
    floor = math.log(law.min_p) if law.min_p > 0.0 else -math.inf
    bits = np.array((law.temperature, law.top_p, floor)).view(np.int64).tolist()
    return int(law.seed.view(np.int64)), law.top_k if law.top_k < vocab_size else 0, *bits


@nb.njit(cache=True)
def fill_draws(
    walks_TX: Words, tokens_N: IntArray, parents_N: IntArray, trees: Words, nodes: Words, jobs: Words
) -> None:
    """Write the kernels' tables of all trees: their records, nodes, and the jobs that draw at these."""
    for tree in range(len(walks_TX)):
        walk = walks_TX[tree]
        first, num_nodes = walk[0], walk[1]
        trees[3 * tree], trees[3 * tree + 1], trees[3 * tree + 2] = first, num_nodes, walk[2]
        for node in range(num_nodes):
            place, parent = first + node, parents_N[first + node]
            nodes[2 * place], nodes[2 * place + 1] = tokens_N[place], parent
            job = JOB_WORDS * place
            jobs[job + SOURCE], jobs[job + IS_RANKED] = walk[4] + walk[3] * node, walk[5]
            jobs[job + SEED], jobs[job + TOP_K] = walk[7], walk[8]
            jobs[job + POSITION] = walk[6] if parent < 0 else jobs[JOB_WORDS * (first + parent) + POSITION] + 1
            jobs[job + TEMPERATURE], jobs[job + TOP_P], jobs[job + FLOOR] = walk[9], walk[10], walk[11]


def _change(row: int, source: int, first_entry: int, entries: Entries, penalties: Penalties) -> Words:
    """The record that applies a list of entries to an edited row."""
    words = np.array([row, source, first_entry, len(entries.tokens_E)])
    numbers = np.array([penalties.presence, penalties.frequency, penalties.repetition])
    return np.concatenate((words, numbers.view(np.int64)))


def plan_step(asked: Sequence[Asked], vocab_size: int) -> Plan:
    """The plan of a step.

    Two kinds of trees are left to the host: those verified by rejection, and those whose processors raise at some
    node (which matters only if the walk reaches that node).
    """
    plan, ranking = Plan(vocab_size, FEW_TOP), list[tuple[Asked, Answers]]()
    trees, places = Trees(), list[Answers]()
    for each in asked:
        tree, is_ranked, answers = each.tree, each.is_ranked, Answers()
        if tree is not None:
            answers = (
                Answers(is_on_host=True) if tree.draws is not None else plan.add_tree(each, tree, is_ranked, trees)
            )
        places.append(answers)
        if is_ranked and not answers.is_on_host:
            answers.is_ranked, sampling = True, each.request.sampling
            most = max(each.num_top, sampling.logprobs or 0, sampling.prompt_logprobs or 0)
            plan.num_top = max(plan.num_top, found_top(most))
            ranking.append((each, answers))
    for each, answers in ranking:
        plan.add_ranks(each, answers)
    plan.answers = places
    if trees:
        plan.walks_TX = np.array([walk for _, walk in trees], np.int64)
        plan.tokens_N = np.concatenate([tree.tokens for tree, _ in trees])
        plan.parents_N = np.concatenate([tree.parents for tree, _ in trees])
    return plan
