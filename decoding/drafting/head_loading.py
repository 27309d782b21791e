"""Which head drafts for a model: the one that is asked for by name, or the one that its checkpoint brings.

Knows no tensors. Invariant: a head that was asked for by name is loaded or refused.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from decoding.config import BUNDLED_MODEL, NO_NAMES, OWN_HEAD, EngineConfig
from decoding.drafting.block.block_config import is_block
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.checkpoint import load_block
from decoding.drafting.eagle.checkpoint import HeadTarget, find_head, load_head, read_fields
from decoding.drafting.eagle.head_config import is_head
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.mtp.checkpoint import load_mtp
from decoding.errors import ConfigError, GanderError
from decoding.model.device.capture import capture_on
from decoding.model.device.runner import Progress
from decoding.model.refusal import refusing
from decoding.model.target_model import TargetModel

logger = logging.getLogger(__name__)


def load_head_model(config: EngineConfig, target: TargetModel, progress: Progress) -> HeadModel | BlockModel | None:
    """The head that goes with `config`, if one is asked for, be it as a draft model, or comes with the target.

    Raises ConfigError where it does not fit its target, and ModelRefused where the target's layers cannot be told.
    """
    name, other = config.draft_head, config.draft_model
    if name is not None and other not in ("auto", "none"):
        raise ConfigError(f"draft_head is {name!r} and draft_model {other!r}; only one of them can draft")
    if name is None and other in NO_NAMES:
        return _load_own_head(config, target) if other in ("auto", OWN_HEAD) else None
    fields = _head_fields(name or other)
    if name is None and fields is None:
        return None
    name = name or other
    progress(f"Loading the head {name}", 0.0)
    with refusing(f"the head {name!r} cannot be loaded"):
        folder = find_head(name)
        if fields is not None and is_block(fields):
            return BlockModel(load_block(folder, target), target)
        head = load_head(folder, HeadTarget(target.shared.embeddings, target.num_layers))
        if target.shared.packed_embedding is not None and not head.config.owns_embeddings:
            head.embed_tokens = target.shared.packed_embedding
        return HeadModel(head, target, capture_on(target.device) if config.graphs else None)


def _head_fields(name: str) -> dict[str, Any] | None:
    """Of a head's config.json; None where a folder or hub name has none, or a model's. The bundled model's name is a
    model's as well; whoever loads a head that is asked for by name says what is wrong with it."""
    if name == BUNDLED_MODEL:
        return None
    try:
        folder = Path(name) if Path(name).is_dir() else Path(snapshot_download(name, allow_patterns="config.json"))
        fields = read_fields(folder)
    except (OSError, ValueError):
        return None
    return fields if is_head(fields) or is_block(fields) else None


def _load_own_head(config: EngineConfig, target: TargetModel) -> HeadModel | None:
    """The head in the target's checkpoint. Where nobody asked for it by name, one that cannot be served is left out."""
    try:
        with refusing(f"the MTP head of {config.model!r} cannot be loaded"):
            head = load_mtp(config, target)
            if head is not None:
                return HeadModel(head, target, capture_on(target.device) if config.graphs else None)
    except GanderError as error:
        if config.draft_model == OWN_HEAD:
            raise ConfigError(f"draft_model is {OWN_HEAD!r}, and {config.model!r} cannot draft so: {error}") from error
        logger.warning("%s drafts without the MTP head of its checkpoint: %s", config.model, error)
    if config.draft_model == OWN_HEAD:
        raise ConfigError(f"draft_model is {OWN_HEAD!r}, and the checkpoint of {config.model!r} has no MTP tensors")
    return None
