"""The served model, as everything that makes prompts and reads replies sees it. It exists once the server is ready."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.worker.messages import Ready
from server.config import ServerSettings
from server.prompts.chat_template import ChatTemplate
from server.prompts.tokenizer import Tokenizer


def takes_pictures(engine: Ready, tokenizer: Tokenizer | None) -> bool:
    """Whether prompts of a model may have pictures. tokenizer: None where it is not loaded yet."""
    return engine.blindness is None and tokenizer is not None and tokenizer.images is not None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: what the client calls it; engine: what the worker reported when it was ready; settings: this model's;
    waited: seconds that the request has waited for it."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    engine: Ready
    settings: ServerSettings
    waited: float = 0.0

    @property
    def takes_pictures(self) -> bool:
        return takes_pictures(self.engine, self.tokenizer)

    @property
    def most_characters(self) -> int:
        """The most characters that may fit into the context: each of its tokens is then the vocabulary's longest."""
        return self.engine.max_model_len * self.tokenizer.longest_token
