"""Owns the hyperparameters of a head's training, with the papers' values as defaults.

Does not know models or data. Invariant: a run with the same options, answers and machine gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoding.drafting.eagle.eagle_tree import BEAM, MOST_DEPTH, NUM_NODES

Objective = Literal["eagle3", "gto", "block"]
HeadDtype = Literal["float32", "bfloat16"]
Reward = Literal["expected", "greedy"]
Aggregate = Literal["lse", "max", "mean"]

TTT_STEPS = 7
TTT_DECAY = 0.8  # step i's loss counts 0.8^i


@dataclass(frozen=True)
class TreeShape:
    """EAGLE-2's tree: at each of num_levels depths the top_k most likely nodes are expanded into top_k children each;
    of all candidates the num_nodes most likely are kept. The defaults are those of the eagle method."""

    top_k: int = BEAM
    num_nodes: int = NUM_NODES
    num_levels: int = MOST_DEPTH


@dataclass(frozen=True)
class GtoOptions:
    """GTO's hyperparameters (Appendix B). The paper does not give clip and floor, its epsilon and delta.

    group_size: m, adjacent positions; num_groups: K, of a sequence; weight: omega; temperature: eta, of the smooth
    maximum over branches; reward: "expected" is eq. 3-4 with the target's probabilities, "greedy" counts the tokens
    that equal the target's most likely one.
    """

    tree: TreeShape = TreeShape()
    group_size: int = 8
    num_groups: int = 16
    weight: float = 0.5
    temperature: float = 1.0
    clip: float = 0.2
    floor: float = 1e-6
    reward: Reward = "expected"
    aggregate: Aggregate = "lse"


@dataclass(frozen=True)
class BlockOptions:
    """A new block head's shape: block_len: its rows; num_layers; markov_rank: of the correction by the token before, 0
    for none. num_roots: tokens of an answer at which blocks begin, drawn anew each time."""

    block_len: int = 1 + TTT_STEPS
    num_layers: int = 2
    markov_rank: int = 0
    num_roots: int = 64


@dataclass(frozen=True)
class TrainingOptions:
    """The options of one run. rate: AdamW's peak rate; warm-up is linear from 0, the decay linear to 0 at `num_steps`.

    A step accumulates the gradients of `accumulation` micro-batches of `batch` sequences. max_len: sequences are cut to
    so many tokens. dtype: of the head's matrix products; its weights and the optimizer's state are float32.
    """

    objective: Objective
    num_steps: int
    rate: float
    warm_up_steps: int
    seed: int = 0
    batch: int = 1
    accumulation: int = 2
    max_len: int = 2048
    clip_norm: float = 0.5
    betas: tuple[float, float] = (0.9, 0.95)
    dtype: HeadDtype = "float32"
    checkpoint_every: int = 25
    gto: GtoOptions = GtoOptions()
    block: BlockOptions = BlockOptions()

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm_up = min(1.0, (step + 1) / max(1, self.warm_up_steps))
        left = (self.num_steps - step) / max(1, self.num_steps - self.warm_up_steps)
        return self.rate * warm_up * min(1.0, left)
