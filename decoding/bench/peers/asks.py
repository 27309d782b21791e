"""What all engines are asked of a model, a folder or a GGUF file: token ids by its own tokenizer and chat template.

Knows nothing of the engines. Invariant: every engine gets the same token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from decoding.bench.peers.rounds import Ask
from decoding.errors import ConfigError
from decoding.model.checkpoint import folder_of
from decoding.training.public_prompts import Prompt, as_chat, read_text


class ModelAsks:
    """Raises ConfigError for what cannot be served."""

    def __init__(self, path: Path) -> None:
        self._folder = folder_of(str(path))
        if not Path(self._folder).is_dir():
            raise ConfigError(f"{path} is no folder with a model and no GGUF file")
        self.vocab_size: int = AutoConfig.from_pretrained(self._folder).get_text_config().vocab_size

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self._folder)
        return tokenizer

    def chats(self, prompts: Sequence[Prompt], max_tokens: int) -> Ask:
        """The first turns of these prompts, each as a chat. Replies end where the model ends them."""
        encoded = [as_chat(self._tokenizer, prompt.turns[0]) for prompt in prompts]
        ends = GenerationConfig.from_pretrained(self._folder).eos_token_id
        return Ask(
            prompts=encoded, max_tokens=max_tokens, end_tokens=[ends] if isinstance(ends, int) else list(ends or [])
        )

    def windows(self, text: Path, num_tokens: int, window_len: int) -> list[list[int]]:
        """The first `num_tokens` tokens of a text in windows of `window_len`; a shorter rest is left out. Raises
        ConfigError for a text without one window."""
        ids = self._tokenizer.encode(read_text(text), add_special_tokens=False)[:num_tokens]
        windows = [ids[first : first + window_len] for first in range(0, len(ids) - window_len + 1, window_len)]
        if not windows:
            raise ConfigError(f"--text {text} has {len(ids)} tokens, less than one window of {window_len}")
        return windows
