"""Prints or writes what points a tool at a server.

Invariant: what a user's file had is not lost: it stays, and a copy of the file lies beside it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from server.connect.errors import ConnectError
from server.connect.served import Served, ask
from server.connect.tools import TOOLS, Tool

COPY = ".before-gander"


def main(name: str, url: str, key: str | None, is_written: bool) -> int:
    """`gander connect`: point the tool of this name at the server. Returns the exit status. Raises ConnectError."""
    if name not in TOOLS:
        raise ConnectError(f"There is no tool {name!r} here; there are {', '.join(TOOLS)}.")
    connect(TOOLS[name], ask(url, key), Path.home(), is_written, typer.echo)
    return 0


def connect(tool: Tool, served: Served, home: Path, is_written: bool, say: Callable[[str], None]) -> None:
    """Say what the tool reads, or write it; then how it is started and what it lacks here. Raises ConnectError."""
    if is_written and tool.path is None:
        raise ConnectError(f"{tool.title} reads no file: set its environment, which is said without --write.")
    if tool.path is not None:
        path, content = home / tool.path, tool.content(served)
        if is_written:
            say(f"# {_write(path, content, tool.is_shared)}")
        else:
            say(f"# {'Add this to' if tool.is_shared else 'Write this to'} ~/{tool.path}, or run this with --write:")
            say(content)
    environment = tool.environment(served)
    if environment:
        say("\n".join(f"export {name}={_quoted(value)}" for name, value in environment.items()))
    say(tool.start)
    for sentence in lacks(tool, served):
        say(f"# {sentence}")


def lacks(tool: Tool, served: Served) -> list[str]:
    """What the tool needs and this server may not have."""
    found = []
    if not served.can_chat:
        found.append(
            f"{tool.title} holds conversations, and this model has no chat template: it can only complete text."
        )
    if served.context < tool.context:
        found.append(
            f"{tool.title} sends instructions that want a context of {tool.context:,} tokens, and this server has "
            f"{served.context:,}: serve a model with more, or a larger --max-model-len."
        )
    if tool.has_tools:
        found.append(f"{tool.title} works by tools: the model must have learned to call them.")
    return found


def _quoted(value: str) -> str:
    return f'"{value}"' if value.startswith("$HOME/") else shlex.quote(value)


def _write(path: Path, content: str, is_shared: bool) -> str:
    """Write a tool's file, for this user alone to read. Returns a sentence of what was done."""
    try:
        before = path.read_text() if path.exists() else None
        if is_shared and before is not None:
            content = _merged(path, before, content)
        if before == content:
            return f"{path} is as it should be."
        path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None:
            shutil.copy2(path, f"{path}{COPY}")
        path.touch(mode=0o600)
        path.write_text(content)
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectError(f"{path} cannot be written: {error}.") from None
    return f"Wrote {path}." if before is None else f"Wrote {path}; what it was is in {path}{COPY}."


def _merged(path: Path, before: str, added: str) -> str:
    try:
        had = json.loads(before or "{}")
    except ValueError:
        had = None
    if not isinstance(had, dict):
        raise ConnectError(f"{path} is no plain JSON (has it comments?): add the lines by hand, without --write.")
    return json.dumps(_with(had, json.loads(added)), indent=2) + "\n"


def _with(had: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    both = {name: _with(had[name], value) for name, value in added.items() if _are_objects(had.get(name), value)}
    return had | added | both


def _are_objects(*values: object) -> bool:
    return all(isinstance(value, dict) for value in values)
