"""Whether a draft model's token ids mean what the target's mean. Reads tokenizers only, never weights."""

from __future__ import annotations

from dataclasses import replace

from transformers import AutoTokenizer

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve
from decoding.model.refusal import refusing


def check_same_vocabulary(config: EngineConfig, draft_name: str) -> None:
    """Raise ConfigError naming the first token id at which the two vocabularies differ.

    Embeddings may be padded to different sizes: only ids that mean something count.
    """
    target = _vocabulary(config)
    draft = _vocabulary(replace(config, model=draft_name, revision=None, gguf_file=None))
    for token_id in sorted(target.keys() | draft.keys()):
        if target.get(token_id) != draft.get(token_id):
            raise ConfigError(
                f"draft model {draft_name!r} has another vocabulary than {config.model!r}: token {token_id} is "
                f"{_shown(draft, token_id)} there and {_shown(target, token_id)} here"
            )


def _shown(vocabulary: dict[int, str], token_id: int) -> str:
    return repr(vocabulary[token_id]) if token_id in vocabulary else "nothing"


def _vocabulary(config: EngineConfig) -> dict[int, str]:
    """Token by id."""
    _, folder = resolve(config)
    with refusing(f"the tokenizer of {config.model!r} cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}
