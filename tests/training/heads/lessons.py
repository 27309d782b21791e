"""A tiny target, a head for it and answers to learn from, for the tests of this room."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from decoding.config import EngineConfig
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.answers import Answer
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.options import GtoOptions, HeadDtype, Objective, TrainingOptions, TreeShape
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.trainer import HeadTrainer
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


def make_trainer(
    objective: Objective, checkpoint: Path, num_steps: int = 8, dtype: HeadDtype = "float32", **changes: float
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
        rate=3e-3,
        warm_up_steps=2,
        batch=2,
        checkpoint_every=2,
        dtype=dtype,
        gto=GtoOptions(tree=TREE, group_size=4, num_groups=2, **changes),  # type: ignore[arg-type]
    )
    return HeadTrainer(head, reference, target, answers(), options, checkpoint)
