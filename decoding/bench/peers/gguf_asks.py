"""What all engines are asked of a GGUF file: token ids by the file's own tokenizer and chat template.

Knows nothing of the engines. Invariant: every engine gets the same token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from decoding.bench.peers.rounds import Ask
from decoding.errors import ConfigError
from decoding.model.checkpoint import folder_of
from decoding.training.public_prompts import Prompt, as_chat, read_text


class GgufAsks:
    """Raises ConfigError for a file that cannot be served."""

    def __init__(self, path: Path) -> None:
        folder = folder_of(str(path))
        if not path.is_file() or folder == str(path):
            raise ConfigError(f"{path} is no GGUF file")
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.vocab_size: int = AutoConfig.from_pretrained(folder).get_text_config().vocab_size
        ends = GenerationConfig.from_pretrained(folder).eos_token_id
        self._end_tokens = [ends] if isinstance(ends, int) else list(ends or [])

    def chats(self, prompts: Sequence[Prompt], max_tokens: int) -> Ask:
        """The first turns of these prompts, each as a chat. Replies end where the model ends them."""
        encoded = [as_chat(self._tokenizer, prompt.turns[0]) for prompt in prompts]
        return Ask(prompts=encoded, max_tokens=max_tokens, end_tokens=self._end_tokens)

    def windows(self, text: Path, num_tokens: int, window_len: int) -> list[list[int]]:
        """The first `num_tokens` tokens of a text in windows of `window_len`; a shorter rest is left out. Raises
        ConfigError for a text without one window."""
        ids = self._tokenizer.encode(read_text(text), add_special_tokens=False)[:num_tokens]
        windows = [ids[first : first + window_len] for first in range(0, len(ids) - window_len + 1, window_len)]
        if not windows:
            raise ConfigError(f"--text {text} has {len(ids)} tokens, less than one window of {window_len}")
        return windows
