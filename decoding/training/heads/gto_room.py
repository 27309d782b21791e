"""What GTO could gain on a head, and whether its premises hold: `python -m decoding.training.heads.gto_room`.

Owns figures over groups of adjacent rows, as GTO draws them. Nothing is trained. Invariant: the present order and the
oracle's choose from the same candidates, with the same number of nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from decoding.config import EngineConfig
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, load_head
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.gto import draw_groups
from decoding.training.heads.options import GtoOptions
from decoding.training.heads.rewards import (
    Accepted,
    FloatArray,
    branch_lengths,
    longest_accepted,
    tree_rewards,
)
from decoding.training.heads.roll import read
from decoding.training.heads.target import OnlineTarget, Reading
from decoding.training.heads.texts.answers import Answer, load_answers
from decoding.training.heads.texts.packs import IntArray
from decoding.training.heads.trees import Candidates, Forest, Trees, candidates

ROWS_AT_ONCE = 64
# Shape suffixes: P rows, C candidates of a tree, L its nodes, G groups, M rows of a group.


@dataclass(frozen=True, slots=True)
class Ordered:
    """Trees that an order chose, with the target's chances of their nodes. accepted: by a greedy target."""

    trees: Trees
    chances_PL: FloatArray
    accepted: Accepted

    @property
    def expected_P(self) -> FloatArray:
        """The tokens that a target at temperature 1 is expected to accept: the sum of all nodes' paths' chances."""
        lengths_PL = branch_lengths(self.trees, self.chances_PL)
        padded_PL = np.concatenate((lengths_PL, np.zeros((len(lengths_PL), 1))), 1)  # the root's at -1
        rows = np.arange(len(lengths_PL))[:, None]
        paths_PL: FloatArray = lengths_PL - padded_PL[rows, self.trees.parents_PL]
        return np.asarray(paths_PL.sum(1))

    def rewards(self, options: GtoOptions) -> FloatArray:
        return tree_rewards(self.trees, self.chances_PL, options.aggregate, options.temperature)


@dataclass(frozen=True, slots=True)
class Seen:
    """A head's trees at some rows: in its own order, in the target's, and the greedy path's tokens, int64 [P, D], -1
    after its end in the first."""

    present: Ordered
    oracle: Ordered
    greedy_PD: IntArray


def look(
    head: EagleHead, target: OnlineTarget, answer: Answer, reading: Reading, rows: list[int], options: GtoOptions
) -> Seen:
    """One head at rows of one answer."""
    device = head.fc.weight.device
    ids = torch.from_numpy(np.append(answer.tokens[1:], 0).astype(np.int64))[None].to(device)
    with torch.no_grad():
        context = read(head, reading.features_TF[None].to(device), ids)
        found = candidates(head, context, torch.tensor(rows, device=device), options.tree)
    tokens_PC, parents_PC = found.tokens_PC.cpu().numpy(), found.parents_PC.cpu().numpy()
    everything = np.arange(tokens_PC.shape[1])
    forests = [Forest(*pair, (everything,)) for pair in zip(tokens_PC, parents_PC, strict=True)]
    told = [
        chances
        for first in range(0, len(rows), ROWS_AT_ONCE)
        for chances in target.score(reading, rows[first : first + ROWS_AT_ONCE], forests[first : first + ROWS_AT_ONCE])
    ]
    chances_PC = np.stack([each.probabilities for each in told])
    likeliest_PC = np.stack([each.is_likeliest for each in told])
    with np.errstate(divide="ignore"):
        logs_PC = np.log(chances_PC)
    paths_PC = _along_paths(parents_PC, logs_PC)
    orders = []
    for scores_PC in (found.scores_PC.cpu(), torch.from_numpy(paths_PC)):
        orders.append(_ordered(found, scores_PC, chances_PC, likeliest_PC, options.tree.num_nodes))
    return Seen(orders[0], orders[1], _greedy_path(tokens_PC, parents_PC, found.scores_PC.cpu().numpy(), options))


def _along_paths(parents_PC: IntArray, logs_PC: FloatArray) -> FloatArray:
    """The sums along paths."""
    sums_PC = np.concatenate((logs_PC, np.zeros((len(logs_PC), 1))), 1)
    rows = np.arange(len(logs_PC))
    for node in range(logs_PC.shape[1]):
        sums_PC[:, node] += sums_PC[rows, parents_PC[:, node]]
    return np.asarray(sums_PC[:, :-1])


def _ordered(
    found: Candidates, scores_PC: torch.Tensor, chances_PC: FloatArray, likeliest_PC: np.ndarray, num_nodes: int
) -> Ordered:
    kept_PL = scores_PC.sort(stable=True, dim=1, descending=True).indices[:, :num_nodes].sort(1).values.numpy()
    trees = found.best(num_nodes, scores_PC.to(found.tokens_PC.device))
    likeliest_PL = np.take_along_axis(likeliest_PC, kept_PL, 1)
    return Ordered(trees, np.take_along_axis(chances_PC, kept_PL, 1), longest_accepted(trees, likeliest_PL))


def _greedy_path(tokens_PC: IntArray, parents_PC: IntArray, scores_PC: FloatArray, options: GtoOptions) -> IntArray:
    """int64 [P, D]: the path of the likeliest child at each depth, -1 where it is no candidate any more."""
    path_PD = np.full((len(tokens_PC), options.tree.num_levels), -1, np.int64)
    for row in range(len(tokens_PC)):
        node = -1
        for depth in range(options.tree.num_levels):
            children = np.flatnonzero(parents_PC[row] == node)
            if not len(children):
                break
            node = int(children[scores_PC[row, children].argmax()])
            path_PD[row, depth] = tokens_PC[row, node]
    return path_PD


def figures(
    heads: Sequence[EagleHead], target: OnlineTarget, answers: Sequence[Answer], options: GtoOptions, seed: int = 0
) -> dict[str, float]:
    """Means over all rows of all groups of the answers. heads: the one looked at and, where there is a second, the one
    that GTO would take for its reference."""
    rows: list[dict[str, FloatArray]] = []
    for number, answer in enumerate(answers):
        random = np.random.default_rng((seed, number))
        groups_GM = draw_groups(random, answer.num_prompt - 1, len(answer.tokens) - 2, options)
        if not len(groups_GM):
            continue
        with target.reading([answer.tokens]) as (reading,):
            chosen = groups_GM.reshape(-1).tolist()
            seen = [look(head, target, answer, reading, chosen, options) for head in heads]
        rows.append(_row_figures(seen, groups_GM.shape, options))
    return {name: round(float(np.concatenate([each[name] for each in rows]).mean()), 4) for name in rows[0]}


def _row_figures(seen: list[Seen], shape: tuple[int, ...], options: GtoOptions) -> dict[str, FloatArray]:
    first, present = seen[0], seen[0].present
    rewards_GM = present.rewards(options).reshape(shape)
    found = {
        "expected tokens, present order": present.expected_P,
        "expected tokens, the best 60 of the candidates": first.oracle.expected_P,
        "greedy tokens, present order": present.accepted.lengths_P,
        "greedy tokens, the best 60 of the candidates": first.oracle.accepted.lengths_P,
        "greedy path pruned": _is_pruned(present.trees, first.greedy_PD),
        "accepted branch is the greedy path's beginning": _is_beginning(present.accepted, first.greedy_PD),
        "reward": rewards_GM.reshape(-1),
        "reward, the best 60 of the candidates": first.oracle.rewards(options),
        "reward's deviation in a group": rewards_GM.std(1),
    }
    if len(seen) > 1:
        other = seen[1].present
        debiased_GM = rewards_GM - other.rewards(options).reshape(shape)
        found |= {
            "accepted branch differs from the reference's": _differs(present.accepted, other.accepted),
            "accepted length above the reference's": present.accepted.lengths_P - other.accepted.lengths_P,
            "reward above the reference's": debiased_GM.reshape(-1),
            "its deviation in a group": debiased_GM.std(1),
        }
    return {name: np.asarray(each, np.float64) for name, each in found.items()}


def _is_pruned(trees: Trees, greedy_PD: IntArray) -> FloatArray:
    """Whether a tree lacks the end of the greedy path."""
    pruned = np.zeros(len(greedy_PD))
    for row, path in enumerate(greedy_PD.tolist()):
        children = dict.fromkeys(zip(trees.parents_PL[row].tolist(), trees.tokens_PL[row].tolist(), strict=True))
        nodes = {key: node for node, key in enumerate(children)}
        node = -1
        for token in path:
            node = nodes.get((node, token), -2)
        pruned[row] = node < 0
    return pruned


def _is_beginning(accepted: Accepted, greedy_PD: IntArray) -> FloatArray:
    depth = accepted.tokens_PD.shape[1]
    is_in_PD = np.arange(depth) < accepted.lengths_P[:, None]
    return np.asarray(((accepted.tokens_PD == greedy_PD[:, :depth]) | ~is_in_PD).all(1), np.float64)


def _differs(one: Accepted, other: Accepted) -> FloatArray:
    depth = min(one.tokens_PD.shape[1], other.tokens_PD.shape[1])
    is_in_PD = np.arange(depth) < one.lengths_P[:, None]
    same_P = ((one.tokens_PD[:, :depth] == other.tokens_PD[:, :depth]) | ~is_in_PD).all(1)
    return np.asarray(~(same_P & (one.lengths_P == other.lengths_P)), np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m decoding.training.heads.gto_room", description=__doc__)
    add, gto = parser.add_argument, GtoOptions()
    add("--model", default="gosling")
    add("--head", required=True, help="a folder or hub name")
    add("--reference", help="GTO's: a folder or hub name")
    add("--data", type=Path, required=True, help="a folder of answers, of which the held-out ones are taken")
    add("--answers", type=int, default=24)
    add("--groups", type=int, default=4, help="of an answer")
    add("--group-size", type=int, default=gto.group_size)
    add("--max-len", type=int, default=2048)
    add("--threads", type=int)
    chosen = parser.parse_args(argv)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    answers = load_answers(chosen.data, chosen.max_len, held_out=True)[: chosen.answers]
    config = EngineConfig(model=chosen.model, threads=torch.get_num_threads())
    target = OnlineTarget.load(config, max(len(answer.tokens) for answer in answers))
    fits = HeadTarget(target.model.shared.embeddings.detach().float(), target.model.num_layers)
    named = [name for name in (chosen.head, chosen.reference) if name is not None]
    heads = [load_head(find_head(name), fits) for name in named]
    target.watch(heads[0].config.feature_layers)
    options = GtoOptions(num_groups=chosen.groups, group_size=chosen.group_size)
    sys.stdout.write(json.dumps(figures(heads, target, answers, options), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
