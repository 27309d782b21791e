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
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
# Variables GANDER_ of others: of tests, of `gander connect`, of Kubernetes and compose.
FOREIGN = re.compile("CONFIG$|TEST_|REAL_MODELS$|API_KEY$|SERVICE_|PORT_|(BASE|GPUS|PUBLISHED_PORT)$")


def with_settings_flags(command: Any, fields: Mapping[str, FieldInfo]) -> Any:
    """Give a command --config and a flag for each setting; it takes them as keyword arguments."""
    config = typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        show_envvar=False,
        help=f"File of settings; by default gander/{FILE_NAME} of the XDG config folder, if it is there",
        show_default=False,
    )
    parameters = [_parameter(name, field) for name, field in fields.items()]
    parameters.append(
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, config]
        )
    )
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
