"""Jinja for chat templates: a sandbox with the names and blocks that transformers' `apply_chat_template` has.

It imports little, because the process that renders a client's template starts with this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


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


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


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


def rendered(template: Template, names: Mapping[str, Any]) -> str:
    """The prompt's text. Raises TemplateRefusal with the template's own words where it refuses the messages."""
    try:
        return template.render(names)
    except MemoryError:
        raise
    except SecurityError:
        raise TemplateRefusal("did what the sandbox forbids") from None
    except Exception as error:  # a template is a program, so it may raise anything for these messages
        raise TemplateRefusal(f"refused the messages: {error}") from error
