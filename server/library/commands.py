"""What `gander pull`, `list`, `show` and `rm` print, and the pull before `gander serve`, which asks first."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.prompt import Confirm

from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError
from decoding.model.files.hub_cache import hub_name
from server.library.hub import HubModel, look_up
from server.library.installed import details, find_installed, installed_models, is_installed, remove
from server.library.pull import in_units, pull

DAY, HOUR, MINUTE = 86_400, 3_600, 60


def show_pull(name: str, revision: str | None, console: Console) -> None:
    """Pull a model with a progress bar, and say where it lies. Raises ConfigError."""
    _pull(look_up(name, revision), console)


def pull_before_serving(name: str, revision: str | None, is_agreed: bool, can_ask: bool, console: Console) -> None:
    """Pull what is a name of the hub and not in its cache; ask first, unless that is agreed. Where nobody can be asked,
    a name without a quantisation is left to the worker, which fetches safetensors while the port is open. Raises
    ConfigError."""
    wanted = hub_name(name)
    if wanted is None or name == BUNDLED_MODEL or Path(name).exists() or is_installed(name, revision):
        return
    if wanted.quantization is None and not (is_agreed or can_ask):
        return
    try:
        model = look_up(name, revision)
    except ConfigError:
        if wanted.quantization is None:
            return  # the start says what is wrong with such a name, or that the cache has what the hub does not tell
        raise
    question = f"{model.name} is not here. Pull {in_units(model.num_bytes)} from the hub?"
    if can_ask and not is_agreed and not Confirm.ask(question, console=console, default=True):
        raise ConfigError(f"{model.name} is not here, and was not pulled")
    _pull(model, console)


def print_models(console: Console) -> None:
    """A line for each model that can be served without a network."""
    models = installed_models()
    if not models:
        console.print("There is no model in the hub's cache; gander pull NAME brings one.", highlight=False)
    width = max((len(str(model)) for model in models), default=0)
    for model in models:
        size, age = in_units(model.num_bytes), _age(time.time() - model.changed)
        console.print(f"{model!s:<{width}}  {size:>9}  {age}", highlight=False, markup=False, soft_wrap=True)


def print_details(name: str, revision: str | None, console: Console) -> None:
    """What there is to know of a model in the cache. Raises ConfigError."""
    for key, value in details(name, revision).items():
        shown = in_units(value) if key == "bytes" else f"{value:,}" if key == "parameters" else value
        console.print(f"{key.replace('_', ' '):<16}{shown}", highlight=False, markup=False, soft_wrap=True)


def remove_model(name: str, revision: str | None, console: Console) -> None:
    """Remove a model from the cache. Raises ConfigError."""
    removed = find_installed(name, revision)
    freed = remove(name, revision)
    console.print(f"{removed} is removed: {in_units(freed)} are free again.", highlight=False, markup=False)


def _pull(model: HubModel, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(str(model.name), total=model.num_bytes)
        pull(model, lambda progress: bar.update(task, completed=progress.done))
    files = "one file" if len(model.files) == 1 else f"{len(model.files)} files"
    sentence = f"{model.name} is here: {in_units(model.num_bytes)} in {files}."
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _age(seconds: float) -> str:
    for size, word in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {word}{'s' * (count > 1)} ago"
    return "just now"
