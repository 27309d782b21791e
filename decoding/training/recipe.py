"""Owns the hyperparameters that made the bundled model: sizes, steps and rates.

Does not know how they are applied. Invariant: with the same recipe, seed and machine the weights are the same.
"""

from dataclasses import dataclass

from decoding.training.schedule import Plan, Stage
from decoding.training.tokenizer import VOCABULARY_SIZE
from decoding.training.tokens import Shares
from decoding.training.train import Shape


@dataclass(frozen=True)
class Recipe:
    """All settings of a run besides its folders and its seed.

    The target learns the corpus, then a second mixture that is rich in arithmetic (its practice).
    """

    corpus_tokens: int
    shares: Shares
    target_shape: Shape
    target_plan: Plan
    practice_tokens: int
    practice_shares: Shares
    practice_plan: Plan
    draft_shape: Shape
    draft_plan: Plan
    num_problems: int = 200
    num_other_prompts: int = 60


BUNDLED = Recipe(
    corpus_tokens=28_000_000,
    shares={"code": 0.34, "reasoning": 0.40, "stories": 0.26},
    target_shape=Shape(VOCABULARY_SIZE, 256, 5, 8, 2, 640),
    target_plan=Plan(
        num_steps=1974,
        stages=(
            Stage(0, 256, 8192, 0.5),
            Stage(261, 256, 4096, 0.35),
            Stage(506, 256, 4096, 0.22),
            Stage(1000, 512, 4096, 0.22),
            Stage(1720, 1024, 4096, 0.22),
        ),
        decay_steps=1324,
        final_share=0.0869,
    ),
    practice_tokens=3_000_000,
    practice_shares={"code": 0.14, "reasoning": 0.34, "stories": 0.08, "drills": 0.44},
    practice_plan=Plan(
        num_steps=730,
        stages=(Stage(0, 512, 4096, 0.16),),
        warm_up_steps=15,
        decay_steps=640,
    ),
    draft_shape=Shape(VOCABULARY_SIZE, 96, 2, 3, 1, 256),
    draft_plan=Plan(
        num_steps=560,
        stages=(Stage(0, 256, 4096, 0.4), Stage(300, 512, 4096, 0.4)),
        warm_up_steps=30,
        decay_steps=430,
        learns_from_target_at=300,
    ),
)
