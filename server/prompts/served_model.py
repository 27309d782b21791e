"""The model that is served, as everything sees it that makes prompts and reads replies. There once both can be done."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.worker.messages import Ready
from server.config import ServerSettings
from server.prompts.chat_template import ChatTemplate
from server.prompts.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: the one clients use; engine: what the worker said of the model; settings: the limits set to its use."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    engine: Ready
    settings: ServerSettings

    @property
    def most_characters(self) -> int:
        """No text of more is as short in tokens as the context."""
        return self.engine.max_model_len * self.tokenizer.longest_token
