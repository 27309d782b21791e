"""Lays out all that a step asks of its logits as tables for the kernels, and where each answer will be.

A job is a row of logits to draw from or to rank. Pure numpy; knows nothing of tensors. Invariant: the first jobs are
the nodes of the trees, tree after tree, so that a node and its job have the same number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.sampling_params import MAX_LOGPROBS
from decoding.core.tree import DraftTree, depths_of
from decoding.kernels.cpu.sampling.edits import Mask, Penalties
from decoding.sampling.asked import Asked
from decoding.sampling.device.tree_edits import TreeEdits
from decoding.sampling.law import Law
from decoding.sampling.logits_processors import Entries

Words = NDArray[np.int64]  # records for the kernels; some words are the bits of a float64
JOB_WORDS = 8  # words of a job's record, see `scan`
SOURCE, IS_RANKED, SEED, POSITION, TOP_K, TEMPERATURE, TOP_P, FLOOR = range(JOB_WORDS)
FEW_TOP = 10  # kernels find so many most likely tokens of a row, or MAX_LOGPROBS if that is too few


def found_top(num_top: int) -> int:
    """The number of most likely tokens to find if `num_top` are wanted: one of the two that kernels are compiled
    for."""
    return FEW_TOP if num_top <= FEW_TOP else MAX_LOGPROBS


class Tree(NamedTuple):
    """A tree that is walked on the device: its first node, its number of nodes, and where its results begin."""

    first: int
    num_nodes: int
    path: int


class Draws(NamedTuple):
    """A tree to draw from. Node i's row is `source + step * i`."""

    tree: DraftTree
    source: int
    step: int
    num_tokens: int  # before it
    law: Law


@dataclass(slots=True)
class Answers:
    """Where a sequence's answers are. tree: None if none is walked; number: of all trees. ranked, scored: the first of
    its entries among the step's ranked rows and scored tokens. is_on_host: the host must answer instead, see
    `plan_step`."""

    tree: Tree | None = None
    number: int = 0
    ranked: int = 0
    scored: int = 0
    is_on_host: bool = False


@dataclass(slots=True)
class Plan:
    """vocab_size: of the rows. num_top: how many most likely tokens of a ranked row are found. answers: one for each
    sequence. The other lists are the kernels' tables, described there."""

    vocab_size: int
    num_top: int
    answers: list[Answers] = field(default_factory=list)
    draws: list[Draws] = field(default_factory=list)
    are_ranked: list[bool] = field(default_factory=list)  # of each tree: whether its jobs rank their rows as well
    jobs: list[Words] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
    nodes: list[Words] = field(default_factory=list)
    ranked: list[int] = field(default_factory=list)
    scored: list[tuple[int, int]] = field(default_factory=list)
    edited: list[tuple[int, int]] = field(default_factory=list)
    changes: list[Words] = field(default_factory=list)  # the same entries for all rows of a tree
    changes_after: list[Words] = field(default_factory=list)  # one row's own entries, applied after the others
    entries: list[Words] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    num_jobs: int = 0
    num_entries: int = 0
    num_mask_words: int = 0
    first_ranked: int = 0  # order of the results: walks, ranked rows, scored tokens

    @property
    def num_nodes(self) -> int:
        """The nodes of all trees."""
        return sum(tree.num_nodes for tree in self.trees)

    @property
    def first_scored(self) -> int:
        return self.first_ranked + len(self.ranked) * (1 + 2 * self.num_top)

    @property
    def num_results(self) -> int:
        return self.first_scored + 2 * len(self.scored)

    def add_tree(self, asked: Asked, tree: DraftTree) -> Answers:
        """Plan a draw at each node of a tree, and its walk."""
        num_nodes = len(tree)
        source, step = asked.first + asked.num_rows - num_nodes, 1
        if asked.processors is not None:
            try:
                edits = TreeEdits(asked.processors, tree)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a panic in llguidance is not an Exception
                return Answers(is_on_host=True)
            source, step = -1 - self._add_edits(edits, source), -1
        walked = Tree(self.num_jobs, num_nodes, self.first_ranked)
        self.trees.append(walked)
        self.first_ranked += 1 + 2 * num_nodes
        self.num_jobs += num_nodes
        self.draws.append(Draws(tree, source, step, asked.request.num_tokens, asked.law))
        self.are_ranked.append(False)
        return Answers(walked, len(self.draws) - 1)

    def lay_out(self) -> None:
        """Make the records of all nodes, and of the jobs that draw at them, at once: each by its request's law."""
        if not self.draws:
            return
        draws, laws, trees = self.draws, [each.law for each in self.draws], [each.tree for each in self.draws]
        tokens_N = np.concatenate([each.tokens for each in trees])
        parents_N = np.concatenate([each.parents for each in trees])
        tree_N = np.repeat(np.arange(len(trees)), [each.num_nodes for each in self.trees])
        node_N = np.arange(len(tree_N)) - np.array([each.first for each in self.trees])[tree_N]
        roots = np.empty((len(trees), JOB_WORDS), np.int64)
        roots[:, SOURCE], roots[:, IS_RANKED] = [each.source for each in draws], self.are_ranked
        roots[:, SEED] = np.array([law.seed for law in laws]).view(np.int64)
        roots[:, POSITION] = [each.num_tokens for each in draws]
        roots[:, TOP_K] = [law.top_k if law.top_k < self.vocab_size else 0 for law in laws]
        roots[:, TEMPERATURE:] = np.array([_numbers(law) for law in laws]).view(np.int64)
        jobs = roots[tree_N]
        jobs[:, SOURCE] += np.array([each.step for each in draws])[tree_N] * node_N
        jobs[:, POSITION] += depths_of(parents_N)
        self.nodes.append(np.stack((tokens_N, parents_N), axis=1).astype(np.int64))
        self.jobs.insert(0, jobs)

    def add_ranks(self, asked: Asked, answers: Answers) -> None:
        """Plan to rank the sequence's rows and score tokens, if top tokens or logprobs are wanted."""
        num_logprobs, prompt_tokens = asked.num_logprobs, asked.prompt_tokens
        if not (asked.num_top or num_logprobs is not None or len(prompt_tokens)):
            return
        answers.ranked, answers.scored = len(self.ranked), len(self.scored)
        tree, num_rows = answers.tree, asked.num_rows
        if tree is None or asked.processors is not None:
            self.rank_rows(asked.first, num_rows)
        else:  # the tree's rows are drawn from unedited, so their jobs can rank them as well
            self.rank_rows(asked.first, num_rows - tree.num_nodes)
            self.are_ranked[answers.number] = True
            self.ranked += range(tree.first, tree.first + tree.num_nodes)
        self.scored += enumerate(prompt_tokens.tolist(), asked.first + asked.first_scored)
        if num_logprobs is not None and tree is not None:
            first = asked.first + num_rows - tree.num_nodes
            self.scored += [(first + node, -1 - tree.first - node) for node in range(tree.num_nodes)]

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


def _numbers(law: Law) -> tuple[float, float, float]:
    """The last words of a job."""
    return law.temperature, law.top_p, math.log(law.min_p) if law.min_p > 0.0 else -math.inf


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
    most = max(each.num_top for each in asked)
    for sampling in [each.request.sampling for each in asked]:
        if sampling.logprobs or sampling.prompt_logprobs:
            most = max(most, sampling.logprobs or 0, sampling.prompt_logprobs or 0)
    plan = Plan(vocab_size, found_top(most))
    for each in asked:
        is_on_host = each.tree is not None and each.tree.draws is not None
        plan.answers.append(
            Answers(is_on_host=is_on_host) if each.tree is None or is_on_host else plan.add_tree(each, each.tree)
        )
    for each, answers in zip(asked, plan.answers, strict=True):
        if not answers.is_on_host:
            plan.add_ranks(each, answers)
    plan.lay_out()
    return plan
