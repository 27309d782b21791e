"""One call of the command as a record, and the trainings that its objectives stand for.

Pure. Invariant: the same job has the same arms in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decoding.config import EngineConfig
from decoding.training.heads.options import Objective, TrainingOptions
from decoding.training.heads.texts.answers import Asking

SHARES = {"answers": 4.5, "features": 0.5, "eagle3": 4.5, "block": 4.5, "gto": 0.6, "control": 0.6, "acceptance": 0.6}
OTHERS = ("answers", "features", "acceptance")
TUNING = 0.1  # of a new head's rate, that gto and control go by, as in the papers


@dataclass(frozen=True)
class Arm:
    """One training. name: of its part and folder. like: the arm of gto's whose steps or, with `by_seconds`, whose
    seconds it has."""

    name: str
    objective: Objective
    seed: int
    like: str | None = None
    by_seconds: bool = False


@dataclass(frozen=True)
class Job:
    """data: files of prompts, "generate", or one folder of answers. num_held_out: so many first prompts are answered
    for the acceptance lengths alone. minutes: to divide; None runs every part to its own end. at_once: the most
    answers that are written at once; None takes the engine's own bound. seeds: of gto and its control."""

    engine: EngineConfig
    data: tuple[str, ...]
    out: Path
    start: str | None
    objectives: tuple[Objective, ...]
    num_prompts: int
    num_held_out: int
    draft_vocab_size: int
    asking: Asking
    options: TrainingOptions
    minutes: float | None = None
    at_once: int | None = None
    feature_bytes: int = 8 * 2**30
    seeds: int = 1

    @property
    def work(self) -> Path:
        """The folder of answers, features and checkpoints."""
        return self.out / "work"

    @property
    def arms(self) -> list[Arm]:
        """In the order in which they run: a head first, then gto and its controls seed by seed."""
        first = self.objectives[0]
        seed = self.options.seed
        arms = [Arm(first, first, seed)] if first in {"eagle3", "block"} else []
        for each in range(self.seeds):
            end = "" if self.seeds == 1 else f"-{each}"
            if "gto" in self.objectives:
                arms.append(Arm(f"gto{end}", "gto", seed + each))
            if "gto" in self.objectives and "control" in self.objectives:
                arms.append(Arm(f"control-tokens{end}", "control", seed + each, like=f"gto{end}"))
                arms.append(Arm(f"control-seconds{end}", "control", seed + each, like=f"gto{end}", by_seconds=True))
            elif "control" in self.objectives:
                arms.append(Arm(f"control{end}", "control", seed + each))
        return arms

    @property
    def shares(self) -> dict[str, float]:
        """Of the minutes. A control has as much as the gto that it is like, with equal steps less. What is left for
        acceptance lengths takes as long as it takes."""
        names = {name: name for name in OTHERS} | {arm.name: arm.objective for arm in self.arms}
        equal = [arm.name for arm in self.arms if arm.like is not None and not arm.by_seconds]
        return {name: SHARES[kind] / (3 if name in equal else 1) for name, kind in names.items()}

    def rate_of(self, arm: Arm) -> float:
        return self.options.rate * (TUNING if arm.objective in {"gto", "control"} else 1.0)

    def folder_of(self, arm: Arm) -> Path:
        """A single training's head is the job's."""
        return self.out if len(self.arms) == 1 else self.out / arm.name
