"""A chat template, the model's or a client's: it turns messages into a prompt's text.

Owns the names that templates get, and what is read off their text; knows nothing of token ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.http.errors import ApiError, invalid
from server.parsing.reply_formats import ReplyFormats, load_reply_formats
from server.prompts.jinja_template import TemplateRefusal
from server.prompts.model_files import ModelFiles
from server.prompts.special_tokens import MarkedText, unused_mark
from server.prompts.template_process import TemplateProcess
from server.prompts.tokenizer_config import CONFIG_FILE, read_tokenizer_config, special_token_texts
from server.schemas.messages import ImageUrl

AUTOMATIC = ReplyFormats()
LOG = logging.getLogger("gander.prompts")
TEMPLATE_FILE = "chat_template.jinja"
TOOL_TEMPLATE = "tool_use"  # the name of the template for tools, where a model has two
IMAGE_PARTS = re.compile(r"""['"]image['"]""")
NULL_CONTENT = re.compile(r"""content['"]?[\])]*\s*(?:is\s+(?:not\s+)?|[!=]=\s*)[nN]one\b""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a template renders. options: further names, from the client; mark: see `MarkedText`; wanted: texts that the
    prompt must have: where the template drops one, it is tried with another form of the messages; image_mark: what
    stands in content for a picture, "" where content is text alone; images: these pictures, in order."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""
    wanted: Sequence[str] = ()
    image_mark: str = ""
    images: Sequence[ImageUrl] = ()


class ChatTemplate:
    """sources: template texts by name, one of them "default"; special_tokens: their texts by the names that templates
    use (bos_token). is_clients: a client's, who is at fault where it makes no prompt. text: all sources, for searching;
    reply_format: of the replies to its prompts.

    Owns the process that renders it: call `close` at last."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        formats: ReplyFormats = AUTOMATIC,
        *,
        is_clients: bool = False,
    ) -> None:
        self.text = "\n".join(sources.values())
        self.formats = formats
        self.reply_format = formats.of(self.text)
        self._sources = sources
        self._special_tokens = special_tokens
        self.is_clients = is_clients
        self._process = TemplateProcess(sources)

    def start(self) -> None:
        """Have the template compiled. Blocks. Raises TemplateRefusal where it is none, or takes too long."""
        self._process.start()

    def close(self) -> None:
        self._process.close()

    def knows(self, name: str) -> bool:
        """Whether `name` occurs in the template."""
        return name in self.text

    @property
    def source(self) -> str:
        """The template's text; of several, the one for conversations without tools."""
        return self._sources["default"]

    @property
    def asks_for_null(self) -> bool:
        """Whether the template tells content that is null from content that is empty."""
        return NULL_CONTENT.search(self.text) is not None

    @property
    def takes_parts(self) -> bool:
        """Whether the template reads content as a list of texts and pictures."""
        return IMAGE_PARTS.search(self.text) is not None

    def replaced_by(self, source: str) -> ChatTemplate:
        """A client's template, with the model's special tokens."""
        return ChatTemplate({"default": source}, self._special_tokens, self.formats, is_clients=True)

    async def render(self, conversation: Conversation) -> MarkedText:
        """The prompt's text. A client's template is closed then. Raises ApiError with the template's own words where it
        refuses the messages."""
        messages, end = conversation.messages, ""
        if conversation.continue_final_message:
            end = unused_mark([messages, conversation.tools, conversation.options, conversation.image_mark])
            messages = [*messages[:-1], _with_end(messages[-1], end)]
        name = TOOL_TEMPLATE if conversation.tools and TOOL_TEMPLATE in self._sources else "default"
        names: dict[str, Any] = {
            **self._special_tokens,
            "documents": None,
            **conversation.options,
            "messages": messages,
            "tools": list(conversation.tools) or None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            text = await self._process.render(name, names, conversation.wanted, conversation.image_mark)
        except TemplateRefusal as refusal:
            at_fault = ("chat_template", "invalid_template") if self.is_clients else ("messages",)
            raise invalid(f"The chat template {refusal}.", *at_fault) from None
        finally:
            if self.is_clients:
                self.close()
        if end:
            text = _cut_at(text, end, _parted(conversation.messages[-1])[1])
        return MarkedText(text, conversation.mark)


def _parted(message: Mapping[str, Any]) -> tuple[str, str]:
    """A message's content, and the white space at its end."""
    content: str = message["content"] or ""
    size = len(content.rstrip())
    return content[:size], content[size:]


def _with_end(message: Mapping[str, Any], end: str) -> Mapping[str, Any]:
    """The message with the mark `end` after its content; before the white space there, which templates may drop."""
    return {**message, "content": end.join(_parted(message))}


def _cut_at(text: str, end: str, space: str) -> str:
    """`text` up to the last message's end, so that the model continues that message. space: what it ends with."""
    begun, found, rest = text.rpartition(end)
    if not found:
        message_text = "The chat template does not show the final message as it is, so it cannot be continued."
        raise ApiError(400, message_text, "continue_final_message")
    return begun.replace(end, "") + (space if rest.startswith(space) else "")


def load_chat_template(files: ModelFiles, settings: ServerSettings) -> ChatTemplate | None:
    """The model's template, or the one in the settings' file; None if there is neither. The log tells how its replies
    are read. Blocks: reads files, and waits until the template is compiled.

    Raises TemplateRefusal for text that is not a template, ConfigError for a broken file, and OSError.
    """
    config, template_path = read_tokenizer_config(files), files.find(TEMPLATE_FILE)
    sources = _sources(config.get("chat_template"))
    if template_path is not None:
        sources["default"] = template_path.read_text("utf-8")
    if settings.chat_template is not None:
        sources = {"default": Path(settings.chat_template).read_text("utf-8")}
    if "default" not in sources:
        return None
    formats = load_reply_formats(config, settings.response_template, settings.tool_parser, settings.reasoning_parser)
    template = ChatTemplate(sources, special_token_texts(config), formats)
    template.start()
    sentence, is_warning = formats.told(template.text)
    LOG.log(logging.WARNING if is_warning else logging.INFO, sentence)
    return template


def _sources(entry: Any) -> dict[str, str]:
    """A template, or a list of them with names, as `chat_template` of the configuration file."""
    if isinstance(entry, str):
        return {"default": entry}
    named = entry if isinstance(entry, list) else []
    if not all(isinstance(each, dict) and {"name", "template"} <= each.keys() for each in named):
        raise ConfigError(f"{CONFIG_FILE}: chat_template is neither a template nor a list of them with names")
    return {str(each["name"]): str(each["template"]) for each in named}
