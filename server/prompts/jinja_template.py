"""Jinja for chat templates: a sandbox with the names and blocks that transformers' `apply_chat_template` has.

It imports little, because the process that renders a client's template starts with this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.prompts.message_forms import forms_of, in_parts


class TemplateRefusal(Exception):
    """A template made no prompt. The message completes a sentence that begins with "The chat template"."""


class _GenerationBlock(Extension):
    """The block {% generation %}, which marks text for training; in a prompt it stands for its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' filter, its options in its order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = ["jinja2.ext.loopcontrols", _GenerationBlock]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def compiled(source: str) -> Template:
    """Compile a template. Jinja evaluates constant expressions here, so a client's may take any time and memory. Raises
    TemplateRefusal for text that is not a template."""
    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError) as error:
        raise TemplateRefusal(f"cannot be read: {error}") from None


def rendered(template: Template, names: Mapping[str, Any], wanted: Sequence[str] = (), image_mark: str = "") -> str:
    """The prompt's text, of the first form of the messages that the template takes and whose text has all that is
    `wanted`; where no form's has, the messages' own. image_mark: see `Conversation`. Raises TemplateRefusal with what
    the template says of these."""
    as_they_are: str | TemplateRefusal | None = None
    for messages in forms_of(names["messages"]):
        try:
            shown = in_parts(messages, image_mark) if image_mark else messages
            text = _rendered(template, {**names, "messages": shown})
        except TemplateRefusal as refusal:
            as_they_are = as_they_are or refusal
            continue
        if all(each in text for each in wanted):
            return text
        as_they_are = text if as_they_are is None else as_they_are
    if isinstance(as_they_are, str):
        return as_they_are
    assert as_they_are is not None
    raise as_they_are


def _rendered(template: Template, names: Mapping[str, Any]) -> str:
    try:
        return template.render(names)
    except MemoryError:
        raise
    except SecurityError:
        raise TemplateRefusal("did what the sandbox forbids") from None
    except Exception as error:  # a template is a program, so it may raise anything for these messages
        raise TemplateRefusal(f"refused the messages: {error}") from error
