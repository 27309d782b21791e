"""A model's chat template, or a client's: messages to prompt text.

Owns what templates are given and what can be told from their text; knows nothing of HTTP or of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoding.errors import ConfigError
from server.http.errors import ApiError, invalid
from server.prompts.jinja_template import TemplateRefusal, compiled, rendered
from server.prompts.model_files import ModelFiles
from server.prompts.special_tokens import MarkedText
from server.prompts.template_process import rendered_apart

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
TOOL_TEMPLATE = "tool_use"  # the name of a model's second template, where it has two


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a template is given. options: further names, from the client; mark: see `MarkedText`."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""


class ChatTemplate:
    """sources: by name, one of them "default"; special_tokens: by name, as templates know them. is_foreign: it is a
    client's, and is rendered by a process of its own."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str], *, is_foreign: bool = False
    ) -> None:
        """Raises TemplateRefusal where a source of the model's cannot be compiled."""
        self._sources = sources
        self._special_tokens = special_tokens
        self._is_foreign = is_foreign
        self._compiled = {} if is_foreign else {name: compiled(text) for name, text in sources.items()}

    @property
    def text(self) -> str:
        """All sources, to look for what they know."""
        return "\n".join(self._sources.values())

    def knows(self, name: str) -> bool:
        """Whether some part of the template speaks of `name`."""
        return name in self.text

    def replaced_by(self, source: str) -> ChatTemplate:
        """A template of a client's."""
        return ChatTemplate({"default": source}, self._special_tokens, is_foreign=True)

    def render(self, conversation: Conversation) -> MarkedText:
        """The prompt's text. Raises ApiError with the template's own words where it refuses the messages."""
        name = TOOL_TEMPLATE if conversation.tools and TOOL_TEMPLATE in self._sources else "default"
        names: dict[str, Any] = {
            **self._special_tokens,
            **conversation.options,
            "messages": conversation.messages,
            "tools": list(conversation.tools) or None,
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            if self._is_foreign:
                text = rendered_apart(self._sources[name], names)
            else:
                text = rendered(self._compiled[name], names)
        except TemplateRefusal as refusal:
            at_fault = ("chat_template", "invalid_template") if self._is_foreign else ("messages",)
            raise invalid(f"The chat template {refusal}.", *at_fault) from None
        if conversation.continue_final_message:
            text = _cut_after(text, conversation.messages[-1])
        return MarkedText(text, conversation.mark)


def _cut_after(text: str, message: Mapping[str, Any]) -> str:
    """`text` up to the end of the last message's content, so that the model goes on with it."""
    content = str(message["content"])
    start = text.rfind(content)
    if start < 0:
        content = content.strip()
        start = text.rfind(content)
    if start < 0 or not content:
        message_text = "The chat template does not show the final message as it is, so it cannot be continued."
        raise ApiError(400, message_text, "continue_final_message")
    return text[: start + len(content)]


def load_chat_template(files: ModelFiles, given: str | None) -> ChatTemplate | None:
    """The model's template, or the one in the file `given`; None if there is neither. Blocks: reads files.

    Raises TemplateRefusal for what is no template, ConfigError for a configuration that cannot be read, and OSError.
    """
    config_path, template_path = files.find(CONFIG_FILE), files.find(TEMPLATE_FILE)
    try:
        config = {} if config_path is None else json.loads(config_path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{CONFIG_FILE} cannot be read: {error}") from None
    sources = _sources(config.get("chat_template"))
    if template_path is not None:
        sources["default"] = template_path.read_text("utf-8")
    if given is not None:
        sources = {"default": Path(given).read_text("utf-8")}
    if "default" not in sources:
        return None
    tokens = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return ChatTemplate(sources, {name: text for name, text in texts.items() if text is not None})


def _sources(entry: Any) -> dict[str, str]:
    if isinstance(entry, str):
        return {"default": entry}
    if isinstance(entry, list):
        return {str(item["name"]): str(item["template"]) for item in entry}
    return {}
