"""How the format of a model's replies is found: by flags, by a file, by the tokenizer, by the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from decoding.errors import ConfigError
from server.parsing.reply_format import NOTHING, Family, ReplyFormat, families, joined, recognised
from server.parsing.template_parser import load_response_template, opens_calls_as

AUTO, NONE = "auto", "none"
DEFAULT = "hermes"  # what a prompt asks for where the chat template does not show tools itself
THINKS = re.compile(r"enable_thinking|reasoning_content|thinking_budget|<think")
UNREAD_CALLS = "The format of this model's tool calls is not known, so that they come as text (--response-template)"
UNREAD_THOUGHTS = "The format of this model's thoughts is not known, so that they come as text (--response-template)"
TEMPLATE_KEY = "response_template"  # of tokenizer_config.json


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """calls_of, thoughts_of: a family, or "auto"; "none" for thoughts. given: a family of a file, which goes first.
    template: transformers' response template, of a file where `is_of_file`, else of the tokenizer."""

    calls_of: str = AUTO
    thoughts_of: str = AUTO
    given: Family = NOTHING
    template: Any = None
    is_of_file: bool = False

    def of(self, template_text: str) -> ReplyFormat:
        """The format of the replies to prompts of this chat template."""
        if self.is_of_file and self.template is not None:
            return ReplyFormat(template=self.template)
        calls_of, thoughts_of = self._families(template_text)
        calls = self.given if self.given.calls else families().get(calls_of, NOTHING)
        thoughts = self.given if self.given.thoughts else families().get(thoughts_of, NOTHING)
        found = joined(calls, thoughts)
        return ReplyFormat(template=self.template) if self._reads_otherwise(found) else found

    def told(self, template_text: str) -> tuple[str, bool]:
        """A sentence that says how replies are read, and whether it is a warning: calls or thoughts cannot be read."""
        found = self.of(template_text)
        if found.template is not None:
            return "Calls and thoughts are read by the response template; calls cannot be forced.", False
        calls_of, thoughts_of = self._families(template_text)
        calls = f"Tool calls are read and written as {'the file' if self.given.calls else calls_of} describes them"
        parts = [calls if found.calls else UNREAD_CALLS]
        if found.thoughts:
            parts.append(f"Thoughts are read as {'the file' if self.given.thoughts else thoughts_of} describes them")
        elif self.thoughts_of != NONE and THINKS.search(template_text):
            parts.append(UNREAD_THOUGHTS)
        return ". ".join(parts) + ".", UNREAD_CALLS in parts or UNREAD_THOUGHTS in parts

    def _families(self, template_text: str) -> tuple[str, str]:
        """The names of the families whose calls and thoughts a chat template shows; "" for none."""
        known = families().items()
        calls_of, thoughts_of = self.calls_of, self.thoughts_of
        if calls_of == AUTO:
            calls_of = recognised(template_text, {name: each for name, each in known if each.calls})
            if not calls_of and "tools" not in template_text:
                calls_of = DEFAULT
        if thoughts_of == AUTO:
            thoughts_of = recognised(template_text, {name: each for name, each in known if each.thoughts})
        return calls_of, thoughts_of

    def _reads_otherwise(self, found: ReplyFormat) -> bool:
        """Whether the tokenizer's template describes another format. Where it is the same our own reader serves better:
        it passes arguments on as they come, and grammars can be made for it."""
        if self.template is None or self.calls_of != AUTO:
            return False
        return not any(opens_calls_as(self.template, form.before + form.pieces[0].text) for form in found.calls)


def load_reply_formats(config: Mapping[str, Any], file: str | None, calls_of: str, thoughts_of: str) -> ReplyFormats:
    """config: of the tokenizer; file: of a family as in `families/`, or of a response template of transformers. Raises
    ConfigError for one that cannot be read."""
    if file is not None:
        try:
            text = Path(file).read_text("utf-8")
            spec = json.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--response-template: {file} cannot be read: {error}") from None
        if isinstance(spec, dict) and "fields" in spec:
            return ReplyFormats(calls_of, thoughts_of, template=load_response_template(spec, file), is_of_file=True)
        try:
            return ReplyFormats(calls_of, thoughts_of, msgspec.json.decode(text, type=Family))
        except msgspec.ValidationError as error:
            raise ConfigError(f"--response-template: {file} is no response template: {error}") from None
    spec = config.get(TEMPLATE_KEY)
    template = None if spec is None else load_response_template(spec, f"tokenizer_config.json: {TEMPLATE_KEY}")
    return ReplyFormats(calls_of, thoughts_of, template=template)
