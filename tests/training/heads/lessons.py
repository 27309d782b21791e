"""A tiny target, a head for it and answers to learn from, for the tests of this room."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from decoding.config import EngineConfig
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.options import (
    TTT_STEPS,
    GtoOptions,
    HeadDtype,
    Objective,
    TrainingOptions,
    TreeShape,
)
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.answers import Answer
from decoding.training.heads.texts.features import Features
from decoding.training.heads.texts.packs import Pack, packed
from decoding.training.heads.trainer import Clock, HeadTrainer
from decoding.training.heads.ttt import Lesson, lesson_of
from tests.models import tiny

VOCAB = 48
TREE = TreeShape(top_k=4, num_nodes=12, num_levels=3)
CONFIG = EngineConfig(max_model_len=128, threads=1)


def target_of(model: PreTrainedModel) -> OnlineTarget:
    return OnlineTarget(model, CONFIG, 256)


@cache
def answers() -> list[Answer]:
    random = np.random.default_rng(0)
    return [Answer(random.integers(0, VOCAB, 20 + 3 * each).astype(np.int32), 5) for each in range(5)]


def head_of(target: OnlineTarget, seed: int = 0) -> EagleHead:
    tokens = most_frequent_tokens([each.reply for each in answers()], VOCAB, 40)
    head = new_head(target, tokens, seed)
    target.watch(head.config.feature_layers)
    return head


def lesson_for(head: EagleHead, target: OnlineTarget, pack: Pack, num_steps: int = TTT_STEPS) -> Lesson:
    known = Features(target, None, 0).of(pack)
    wanted_TW = target.chances(known.hidden_TE, head.target_ids)
    return lesson_of(pack, known.features_TF, wanted_TW, head.t2d[known.likeliest_T], num_steps)


class SteppingClock:
    """A clock on which every look takes half a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.5
        return self.seconds


def make_trainer(
    objective: Objective,
    checkpoint: Path,
    num_steps: int | None = 8,
    dtype: HeadDtype = "float32",
    now: Clock | None = None,
    seconds: float = 0.0,
    **changes: float,
) -> HeadTrainer:
    torch.manual_seed(0)
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    reference = None
    if objective == "gto":
        reference = new_head(target, head.target_ids, 0).requires_grad_(False)
    options = TrainingOptions(
        objective=objective,
        num_steps=num_steps,
        seconds=seconds,
        rate=3e-3,
        warm_up_steps=2,
        tokens=60,
        save_seconds=1.0,
        dtype=dtype,
        gto=GtoOptions(tree=TREE, group_size=4, num_groups=2, **changes),  # type: ignore[arg-type]
    )
    features = Features(target, None, 0)
    packs = packed(answers(), options.tokens, 0)
    return HeadTrainer(head, reference, features, packs, options, checkpoint, now or SteppingClock())
