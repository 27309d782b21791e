"""Owns the numbers of a head's training, with the papers' values as defaults.

Does not know models or data. Invariant: with the same numbers, answers and machine a run gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoding.drafting.eagle.eagle_tree import BEAM, MOST_DEPTH, NUM_NODES

Objective = Literal["eagle3", "gto"]
HeadDtype = Literal["float32", "bfloat16"]
Reward = Literal["expected", "greedy"]
Aggregate = Literal["lse", "max", "mean"]

TTT_STEPS = 7
TTT_DECAY = 0.8  # step i's loss counts 0.8^i


@dataclass(frozen=True)
class TreeShape:
    """EAGLE-2's tree: the top_k likeliest of each of num_levels depths are expanded into top_k each, and of all
    candidates the num_nodes likeliest are kept. By default as the eagle method grows it."""

    top_k: int = BEAM
    num_nodes: int = NUM_NODES
    num_levels: int = MOST_DEPTH


@dataclass(frozen=True)
class GtoOptions:
    """GTO's numbers (Appendix B). clip and floor, its epsilon and delta, are not given in the paper.

    group_size: m, adjacent positions; num_groups: K, of a sequence; weight: omega; temperature: eta, of the smooth
    maximum over branches; reward: "expected" is eq. 3-4 with the target's probabilities, "greedy" counts the tokens
    that equal the target's likeliest.
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
class TrainingOptions:
    """One run. rate: AdamW's peak; warm-up is linear from 0, the decay linear to 0 at `num_steps`.

    A step learns from `batch` sequences at once, `accumulation` times. max_len: tokens of a sequence, the rest is
    cut. dtype: of the head's products; its weights and the optimizer's state are float32.
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

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm_up = min(1.0, (step + 1) / max(1, self.warm_up_steps))
        left = (self.num_steps - step) / max(1, self.num_steps - self.warm_up_steps)
        return self.rate * warm_up * min(1.0, left)
