"""A model's chat template: messages to prompt text, by Jinja in a sandbox, with what templates expect to find there.

Owns the rendering and what can be told from a template's text; knows nothing of HTTP or of token ids. What templates
may use is fixed by transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.http.errors import ApiError, invalid
from server.prompts.model_files import ModelFiles
from server.prompts.special_tokens import MarkedText

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
TOOL_TEMPLATE = "tool_use"  # the name of a model's second template, where it has two


class _GenerationBlock(Extension):
    """{% generation %} marks what training learns from; for a prompt it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = ["jinja2.ext.loopcontrols", _GenerationBlock]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


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
    """sources: by name, one of them "default"; special_tokens: by name, as templates know them."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateError where a source cannot be compiled."""
        self._sources = sources
        self._special_tokens = special_tokens
        environment = _environment()
        self._compiled: dict[str, Template] = {name: environment.from_string(text) for name, text in sources.items()}

    @property
    def text(self) -> str:
        """All sources, to look for what they know."""
        return "\n".join(self._sources.values())

    def knows(self, name: str) -> bool:
        """Whether some part of the template speaks of `name`."""
        return name in self.text

    def replaced_by(self, source: str) -> ChatTemplate:
        """A template of the client's own. Raises ApiError where it cannot be compiled."""
        try:
            return ChatTemplate({"default": source}, self._special_tokens)
        except (TemplateError, RecursionError) as error:
            raise invalid(f"chat_template cannot be read: {error}", "chat_template", "invalid_template") from None

    def render(self, conversation: Conversation) -> MarkedText:
        """The prompt's text. Raises ApiError with the template's own words where it refuses the messages."""
        name = TOOL_TEMPLATE if conversation.tools and TOOL_TEMPLATE in self._compiled else "default"
        names: dict[str, Any] = {
            **self._special_tokens,
            **conversation.options,
            "messages": conversation.messages,
            "tools": list(conversation.tools) or None,
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            text = self._compiled[name].render(names)
        except SecurityError:
            raise invalid("The chat template did what the sandbox forbids.", "messages", "invalid_template") from None
        except Exception as error:  # a template may fail in any way a program may; the messages made it
            raise invalid(f"The model's chat template refused the messages: {error}", "messages") from error
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
    """The model's template, or the one in the file `given`; None if there is neither. Blocks: reads files."""
    config_path, template_path = files.find(CONFIG_FILE), files.find(TEMPLATE_FILE)
    config = {} if config_path is None else json.loads(config_path.read_text("utf-8"))
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
