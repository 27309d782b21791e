"""The manual page of the `gander` command in roff, made from the commands and flags themselves.

Knows of commands what click's have: a help, parameters, commands below.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from server.settings.file import FILE_NAME

FILES = (
    (
        f"~/.config/gander/{FILE_NAME}",
        "settings of gander serve; the folder is $XDG_CONFIG_HOME/gander where that is set",
    ),
    ("~/.cache/huggingface/hub", "models that were pulled; $HF_HUB_CACHE or $HF_HOME move it"),
    ("~/.cache/gander", "compiled kernels; $NUMBA_CACHE_DIR moves them"),
)
ENVIRONMENT = """Each setting of gander serve can be set as GANDER_ and its flag's name, \
--max-running as GANDER_MAX_RUNNING. GANDER_CONFIG names the file of settings. HF_TOKEN opens private models, and \
HF_HUB_OFFLINE=1 has the hub not asked."""


def manual(group: Any, version: str) -> str:
    """The page of all commands of a click group."""
    lines = [
        f'.TH GANDER 1 "" "gander {version}" "User Commands"',
        *(".SH NAME", rf"gander \- {_escaped(_first_line(group))}"),
        *(".SH SYNOPSIS", ".B gander", r".I COMMAND\fR ..."),
        ".SH COMMANDS",
    ]
    for name, command in group.commands.items():
        lines += _section(name, command)
    lines += [".SH ENVIRONMENT", _escaped(ENVIRONMENT), ".SH FILES"]
    for path, text in FILES:
        lines += [".TP", rf"\fI{_escaped(path)}\fR", _escaped(text)]
    return "\n".join(lines) + "\n"


def _section(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    yield rf".SS gander {_escaped(' '.join((name, *arguments)))}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (".PP", _escaped(" ".join(paragraph.split())))
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _escaped(record[1]))


def _first_line(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n")[0]


def _escaped(text: str) -> str:
    """Text as roff has it: no letter of it is a command."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)
