"""The flags of `gander serve`, made from the settings: each is defined once, in its group.

Knows typer, and no command. Invariant: a flag's default is None, so that variable, file or default then hold.
"""

from __future__ import annotations

import inspect
import operator
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from server.settings.file import FIELDS, FILE_NAME, key_of

ALIASES = {"workers": "--data-parallel-size"}  # what vLLM calls a setting
PREFIX = "GANDER_"  # of the settings' variables
# Variables GANDER_ of others: of tests, of `gander connect`, of Kubernetes and compose.
FOREIGN = re.compile("CONFIG$|TEST_|REAL_MODELS$|API_KEY$|SERVICE_|PORT_|(BASE|GPUS|PUBLISHED_PORT)$")


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        envvar=f"{PREFIX}CONFIG",
        show_envvar=False,
        show_default=False,
        help=f"File of settings; by default gander/{FILE_NAME} of the XDG config folder, if it is there",
    ),
]


def with_settings_flags(command: Any, fields: Mapping[str, FieldInfo]) -> Any:
    """Give a command a flag for each setting, beside its own; it takes them as **options."""
    own = [
        each
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    parameters = [*(_parameter(name, field) for name, field in fields.items()), *own]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = "" if field.default is None or field.default is False else f" (default {field.default})"
    text = f"{field.description}{default}"
    if name == "model":
        info: Any = typer.Argument(help=text, show_default=False)
        annotation = operator.getitem(Annotated, (list[str] | None, info))
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    words = key_of(name)
    flag = f"--{words}/--no-{words}" if field.default is True else f"--{words}"
    names = (flag, ALIASES[name]) if name in ALIASES else (flag,)
    info = typer.Option(*names, help=text, show_default=False)
    annotation = operator.getitem(Annotated, (field.annotation | None, info))  # type: ignore[operator]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def unknown_variables() -> Iterator[str]:
    """The variables that look like settings and are none, but for those of tests, and those that Kubernetes sets for a
    service named gander."""
    for name in sorted(os.environ):
        setting = name.removeprefix(PREFIX)
        if setting != name and setting.lower() not in FIELDS and not FOREIGN.match(setting):
            yield name
