"""Jinja as chat templates are written for it: a sandbox, and the names and blocks that templates expect to find there.

What templates may use is fixed by transformers' `apply_chat_template`. Light to import: the process that renders what
clients bring begins with this file.
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
    """What a template did instead of making a prompt, to be said after "The chat template "."""


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


def compiled(source: str) -> Template:
    """Raises TemplateRefusal for what is no template. Constants are folded here, so it may take any time and room."""
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
    except Exception as error:  # a template may fail in any way a program may; the messages made it
        raise TemplateRefusal(f"refused the messages: {error}") from error
