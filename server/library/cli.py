"""`gander pull`, `list`, `show` and `rm`. Each imports what it needs itself, so that others start quickly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from decoding.errors import GanderError

commands = typer.Typer()
ModelName = Annotated[str, typer.Argument(help="org/model, or org/model:Q4_K_M for one of its GGUF files")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit")]


@contextmanager
def refusing() -> Iterator[None]:
    """End with status 2 and a sentence where something cannot be done."""
    try:
        yield
    except GanderError as error:
        Console(stderr=True).print(f"[red]Error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


@commands.command(name="pull")
def pull(name: ModelName, revision: Revision = None) -> None:
    """Pull a model from the hub.

    NAME is as org/model, or org/model:Q4_K_M for one of its GGUF files. A pull that broke off goes on.
    """
    from server.library.commands import show_pull

    with refusing():
        show_pull(name, revision, Console(stderr=True))


@commands.command(name="list")
def list_models() -> None:
    """List the models that are here.

    They are in the hub's cache, and need no network.
    """
    from server.library.commands import print_models

    print_models(Console())


@commands.command(name="show")
def show(name: ModelName, revision: Revision = None) -> None:
    """Show what a model's files say of it."""
    from server.library.commands import print_details

    with refusing():
        print_details(name, revision, Console())


@commands.command(name="rm")
def remove(name: ModelName, revision: Revision = None) -> None:
    """Remove a model that was pulled.

    Other quantisations of the same repository stay.
    """
    from server.library.commands import remove_model

    with refusing():
        remove_model(name, revision, Console(stderr=True))
