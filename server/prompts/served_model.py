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
