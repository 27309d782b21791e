"""What an arm begins with: a new head, or one that is loaded.

Knows no clock. Invariant: all arms that go on from a head begin with the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoding.drafting.block.checkpoint import assemble_block
from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, load_head
from decoding.drafting.eagle.network import EagleHead
from decoding.errors import ConfigError
from decoding.training.heads.block.fresh_block import new_block_head, rarest_token, shared_layers
from decoding.training.heads.fresh_head import most_frequent_tokens, new_head
from decoding.training.heads.run.job import Arm, Job
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.answers import Answer


def first_head(job: Job, arm: Arm, target: OnlineTarget, answers: Sequence[Answer]) -> EagleHead | BlockHead:
    """The head that an arm trains. Raises ConfigError if a start head is missing or does not fit."""
    embeddings_VE = target.model.shared.embeddings.detach()
    if arm.objective == "block":
        if job.start is not None:
            return block_head(find_head(job.start), target)
        mask = rarest_token([answer.tokens for answer in answers], embeddings_VE)
        return new_block_head(target, mask, job.options.block, job.options.seed)
    if arm.objective == "eagle3" and job.start is None:
        size = min(job.draft_vocab_size, len(embeddings_VE))
        tokens = most_frequent_tokens([answer.reply for answer in answers], len(embeddings_VE), size)
        return new_head(target, tokens, job.options.seed)
    return start_head(job, arm, target)


def start_head(job: Job, arm: Arm, target: OnlineTarget) -> EagleHead:
    """The head that an arm goes on from: the run's own first one, or that of --start."""
    if arm.objective != "eagle3" and "eagle3" in job.objectives:
        return eagle_head(job.out / "eagle3", target)
    if job.start is None:
        raise ConfigError(f"objective {arm.objective!r} goes on from a head: name it with --start")
    return eagle_head(find_head(job.start), target)


def eagle_head(folder: Path, target: OnlineTarget) -> EagleHead:
    """In float32."""
    return load_head(folder, HeadTarget(target.model.shared.embeddings.detach().float(), target.model.num_layers))


def block_head(folder: Path, target: OnlineTarget) -> BlockHead:
    layers = shared_layers(target)
    embeddings_VE = target.model.shared.embeddings.detach().float()
    return assemble_block(folder, *layers, embeddings_VE, target.model.num_layers)
