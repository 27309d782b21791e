"""Which of a draft model's tokens are which of the target's: the same ids, or those that spell the same.

Reads tokenizers only, never weights. A draft model with another vocabulary reads one token of its own for each of the
target's, so that both have their rows in the same places, and names tokens that both have (the token-level
intersection of Timor et al., 2025, arXiv 2502.05202). What it cannot read or name costs acceptance, never tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from decoding.config import EngineConfig
from decoding.core.tree import IntArray
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve
from decoding.model.refusal import refusing

LEAST_ALIKE = 0.1  # of the draft model's tokens, that the target has too
_BEFORE = "a"  # what tokens are spelled after: some begin with a space that a text's first token loses
_BROKEN = "\ufffd"  # of bytes that are no whole character


@dataclass(frozen=True, slots=True)
class TokenMap:
    """Between V tokens of the target and W of the draft model.

    to_draft: int32 [V], the token that spells the same, or the last of those that do together; to_target: int32 [W], V
    where no token spells the same.
    """

    to_draft: IntArray
    to_target: IntArray


def token_map(config: EngineConfig, draft_name: str, num_tokens: int, num_draft_tokens: int) -> TokenMap | None:
    """None where ids mean the same to both models. num_tokens, num_draft_tokens: V and W, with padding.

    Raises ConfigError where they have hardly a token in common.
    """
    target = _tokenizer(config)
    draft = _tokenizer(replace(config, model=draft_name, revision=None, gguf_file=None))
    if target.get_vocab() == draft.get_vocab():
        return None
    ours, theirs = _spellings(target, num_tokens), _spellings(draft, num_draft_tokens)
    ids = {spelling: token_id for token_id, spelling in reversed(theirs.items())}
    alike = {token_id: ids[spelling] for token_id, spelling in ours.items() if spelling in ids}
    if len(alike) < LEAST_ALIKE * len(theirs):
        raise ConfigError(
            f"draft model {draft_name!r} cannot draft for {config.model!r}: of its {len(theirs)} tokens only "
            f"{len(alike)} are spelled like one of the target's"
        )
    to_draft, to_target = np.zeros(num_tokens, np.int32), np.full(num_draft_tokens, num_tokens, np.int32)
    others = [token_id for token_id in ours if token_id not in alike]
    pieces = draft([ours[token_id][1] for token_id in others], add_special_tokens=False)["input_ids"] if others else []
    for token_id, spelled in zip(others, pieces, strict=True):
        to_draft[token_id] = spelled[-1] if spelled else 0
    for token_id, other in reversed(alike.items()):
        to_draft[token_id], to_target[other] = other, token_id
    return TokenMap(to_draft, to_target)


def _spellings(tokenizer: Any, num_tokens: int) -> dict[int, tuple[bool, str]]:
    """Of each token that a model has, by id: False and its text, or True and its name, if it is special or no whole
    character."""
    special, found = set(tokenizer.all_special_ids), {}
    named = ((token_id, name) for name, token_id in tokenizer.get_vocab().items() if token_id < num_tokens)
    for token_id, name in sorted(named):
        text = _BROKEN if token_id in special else tokenizer.convert_tokens_to_string([_BEFORE, name])[len(_BEFORE) :]
        is_text = bool(text) and _BROKEN not in text
        found[token_id] = (not is_text, text if is_text else name)
    return found


def _tokenizer(config: EngineConfig) -> Any:
    _, folder = resolve(config)
    with refusing(f"the tokenizer of {config.model!r} cannot be loaded"):
        return AutoTokenizer.from_pretrained(
            folder, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
