"""Owns the hyperparameters of a head's training, with the papers' values as defaults.

Does not know models or data. Invariant: a run with the same options, answers and machine gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoding.drafting.eagle.eagle_tree import BEAM, MOST_DEPTH, NUM_NODES

Objective = Literal["eagle3", "gto", "control", "block"]
HeadDtype = Literal["float32", "bfloat16"]
Reward = Literal["expected", "greedy"]
Aggregate = Literal["lse", "max", "mean"]

TTT_STEPS = 7
TTT_DECAY = 0.8  # step i's loss counts 0.8^i
WARM_UP, WARM_UP_SHARE = 1000, 0.1  # steps, and the most of a run


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
    """The options of one run, which ends after `num_steps` steps or, where that is None, after `seconds` of them. rate:
    AdamW's peak rate; warm-up is linear from 0, over `warm_up_steps` or by default 1000 steps and at most a tenth of
    the run; the decay is linear to 0 at its end.

    tokens: of a step, which takes whole answers up to so many. dtype: of the head's matrix products; its weights and
    the optimizer's state are float32. save_seconds: of training that a kill loses at most, beside a step. "control" is
    "gto" without its loss.
    """

    objective: Objective
    rate: float
    num_steps: int | None = None
    seconds: float = 0.0
    warm_up_steps: int | None = None
    seed: int = 0
    tokens: int = 1024
    clip_norm: float = 0.5
    betas: tuple[float, float] = (0.9, 0.95)
    dtype: HeadDtype = "float32"
    save_seconds: float = 20.0
    gto: GtoOptions = GtoOptions()
    block: BlockOptions = BlockOptions()

    def share(self, step: int, seconds: float) -> float:
        """How much of the run is over, 0 to 1, after so many steps, which took so long."""
        if self.num_steps is not None:
            return min(1.0, step / self.num_steps)
        return min(1.0, seconds / self.seconds) if self.seconds > 0 else 1.0

    def rate_at(self, step: int, share: float) -> float:
        """The learning rate of a step, counted from 0, before which that share of the run is over."""
        done = (step + 1) / max(1, self.warm_up_steps or WARM_UP)
        if self.warm_up_steps is None:
            next_share = share if self.num_steps is None else (step + 1) / self.num_steps
            done = max(done, next_share / WARM_UP_SHARE)
        return self.rate * min(1.0, done, (1 - share) / (1 - WARM_UP_SHARE))
