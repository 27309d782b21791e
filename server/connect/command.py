"""What `gander connect` does with its arguments."""

from __future__ import annotations

from pathlib import Path

import typer

from server.connect.connect import connect
from server.connect.errors import ConnectError
from server.connect.served import ask
from server.connect.tools import TOOLS


def main(name: str, url: str, key: str | None, is_written: bool) -> int:
    """Point the tool of this name at the server. Returns the exit status. Raises ConnectError."""
    if name not in TOOLS:
        raise ConnectError(f"There is no tool {name!r} here; there are {', '.join(TOOLS)}.")
    connect(TOOLS[name], ask(url, key), Path.home(), is_written, typer.echo)
    return 0
