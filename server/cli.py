"""The `gander` command, with its commands for serving; those for models in a library are added to it.

The flags of `serve` are made from `ServerSettings`, which defines each once. Every command imports the heavy modules
that it needs itself, so that the others start quickly.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from decoding import __version__
from decoding.config import BUNDLED_MODEL, NO_NAMES
from decoding.errors import ConfigError
from decoding.process.terminal import outlive_hangups
from server.config import Configuration, ServerSettings, SettingSources, variables
from server.http.keys import is_hashed
from server.library.cli import commands, refusing
from server.settings.file import SECRETS, key_of
from server.settings.flags import PREFIX, ConfigFile, unknown_variables, with_settings_flags
from server.settings.manual import manual
from server.settings.shown import heading, shown

app = typer.Typer(
    help="An OpenAI-compatible server with tree speculative decoding.", no_args_is_help=True, rich_markup_mode=None
)
SERVER_BENCHES = {
    "serve": "server.bench.__main__",
    "real": "server.bench.real.__main__",
    "pictures": "server.bench.seeing.__main__",
}
PASS_THROUGH = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,  # else click would drop `--`
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def serve(
    *,
    config: ConfigFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Pull a model that is not here without asking")] = False,
    **options: Any,
) -> None:
    """Serve a model over HTTP, or several.

    MODEL is a Hugging Face name (org/model:Q4_K_M for one GGUF file), a folder, a GGUF file, the name of a table in
    gander.toml, or, by default, all of its tables, else the small bundled model. NAME=MODEL names it. Of several models
    the first is the default, and each is loaded once a request names it.

    Each option can also be set in the environment, --max-running as GANDER_MAX_RUNNING, and in the file gander.toml,
    as max-running. What is given here wins, then the environment.
    """
    outlive_hangups()  # the runner, which takes seconds to import, has handlers of its own
    given = {name: value for name, value in options.items() if value is not None}
    sources = SettingSources.gather(given, config)
    found = _read(sources)
    _hide_keys(given)
    for name in unknown_variables():
        _warn(name, "this variable is no setting of gander serve, and is ignored.")
    if found.file.has_open_keys:
        _warn(str(found.file.path), "it has API keys, and others can read it: chmod 600, or give keys as sha256:HEX.")
    models = [model.settings for _, model in found.models]
    for model in models:
        _pull_before_serving(model, yes)
    from server.process.runner import run

    server = found.server.settings
    raise typer.Exit(run(server, models, sources=sources.without_keys(server)))


def _read(sources: SettingSources) -> Configuration:
    """The settings; where some are wrong, print a line for each and exit with status 2."""
    try:
        return sources.read()
    except ConfigError as error:
        _refuse(str(error))


def _refuse(sentence: str) -> NoReturn:
    Console(stderr=True, style="red").print(escape(sentence), highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _warn(what: str, sentence: str) -> None:
    text = f"[yellow]{escape(what)}:[/yellow] {escape(sentence)}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _pull_before_serving(settings: ServerSettings, is_agreed: bool) -> None:
    from server.library.commands import pull_before_serving

    console = Console(stderr=True)
    can_ask = console.is_terminal and sys.stdin.isatty()
    models = [(settings.model, settings.revision)] if settings.gguf_file is None else []
    if settings.draft_model not in NO_NAMES:
        models.append((settings.draft_model, None))
    with refusing():
        for name, revision in models:
            pull_before_serving(name, revision, is_agreed, can_ask, console)


def _hide_keys(given: Mapping[str, Any]) -> None:
    """Remove keys from the environment, which child processes inherit, and warn of keys that were given as flags."""
    for name in SECRETS:
        os.environ.pop(f"{PREFIX}{name.upper()}", None)
        if name in given and not all(is_hashed(key.strip()) for key in given[name].split(",")):
            _warn(
                f"--{key_of(name)} has a key",
                "every user of this machine can read it there; use --api-key-file, the environment or sha256:HEX.",
            )


app.command(name="serve")(with_settings_flags(serve, ServerSettings.model_fields))


@app.command(name="config")
@partial(with_settings_flags, fields=ServerSettings.model_fields)
def config_in_force(*, config: ConfigFile = None, **options: Any) -> None:
    """Show the settings in force.

    It takes what `gander serve` takes, and prints every setting with where its value comes from, as gander.toml has it.
    API keys are not shown.
    """
    given = {name: value for name, value in options.items() if value is not None}
    sources = SettingSources.gather(given, config)
    found = _read(sources)
    state = "is read" if found.file.path is not None else "is not there"
    typer.echo(
        f"# Flags win over variables, variables over the file, and the file over defaults. {sources.path} {state}."
    )
    server = found.server
    names = [name for name in ServerSettings.model_fields if found.models[0][1] is server or name != "model"]
    typer.echo("\n".join(shown(server.settings, server.origins, names)))
    for name, model in found.models:
        if model is not server:
            own = [each for each, origin in model.origins.items() if origin != server.origins.get(each)]
            typer.echo("\n".join((heading(name), *shown(model.settings, model.origins, own))))


@app.command(name="doctor")
def doctor(
    model: Annotated[str | None, typer.Argument(help="A model to try: a name, a folder or a GGUF file")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON")] = False,
) -> None:
    """Say what this machine gives a server, and what would make it faster.

    Processor, cores, memory and its speed, GPU, compiled kernels, and whether drafted replies are exact: of MODEL, or
    of the bundled one once kernels are compiled. It exits with status 1 where something is wrong.
    """
    from server.doctor.doctor import main

    raise typer.Exit(main(model, is_json))


app.add_typer(commands)


@app.command(name="connect")
def connect(
    tool: Annotated[str, typer.Argument(help="codex, claude, opencode, qwen, aider, continue, zed or openwebui")],
    url: Annotated[str, typer.Option(help="Where the server is")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="GANDER_API_KEY", help="API key of the server, if it wants one")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the tool's file; a copy of the old one is kept")
    ] = False,
) -> None:
    """Point an agent, an editor or a chat page at a running server.

    It prints the file or the environment that TOOL reads, with the server's address, model and context length.
    """
    from server.connect.connect import main

    with refusing():
        raise typer.Exit(main(tool, url, key, write))


@app.command(name="bench", context_settings=PASS_THROUGH)
def bench(context: typer.Context) -> None:
    """Measure a model of yours, a server, or an engine.

    `bench real` measures every drafting method on your model, `bench serve` a server; `bench --help` names the others.
    """
    name, *rest = context.args or [""]
    module = SERVER_BENCHES.get(name)
    main = importlib.import_module(module or "decoding.bench.__main__").main
    with refusing():
        raise typer.Exit(main(rest if module else context.args))


@app.command(name="tune-tree", context_settings=PASS_THROUGH)
def tune_tree(context: typer.Context) -> None:
    """Tune a static tree for STAND."""
    module = importlib.import_module("decoding.training.tune_tree")
    with refusing():
        raise typer.Exit(module.main(context.args))


@app.command(name="train-head", context_settings=PASS_THROUGH)
def train_head(context: typer.Context) -> None:
    """Train a draft head for a model."""
    module = importlib.import_module("decoding.training.heads.train_head")
    raise typer.Exit(module.main(context.args))


@app.command(name="ray-config")
def ray_config(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face model name, a folder, or the bundled model")
    ] = BUNDLED_MODEL,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas, at least")] = 2,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="At most; by default as many")] = None,
    cpus: Annotated[float, typer.Option(min=0, help="Cores of each replica")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each replica")] = 0,
    setting: Annotated[list[str] | None, typer.Option("--set", help="A setting of serve, as NAME=VALUE")] = None,
) -> None:
    """Write a file for Ray Serve.

    It goes to standard output; `serve deploy` runs MODEL by it.
    """
    from server.ray.config_file import OF_THE_PORT, RayOptions, config_of, written

    named = dict(text.partition("=")[::2] for text in setting or [])
    given = {"model": model} | {name.replace("-", "_"): value for name, value in named.items()}
    settings = _read(SettingSources(given, variables())).server.settings
    if unused := sorted(OF_THE_PORT & given.keys()):
        flags = ", ".join(name.replace("_", "-") for name in unused)
        raise typer.BadParameter(f"{flags}: the port is Ray's, which has settings of its own", param_hint="--set")
    most = replicas if max_replicas is None else max_replicas
    if most < replicas:
        raise typer.BadParameter(f"{most} is less than --replicas {replicas}", param_hint="--max-replicas")
    options = RayOptions(replicas, most, cpus, gpus, settings.host, settings.port)
    typer.echo(written(config_of(options, settings.model_dump(mode="json", include=given.keys() - {"host", "port"}))))


@app.command(name="man")
def man() -> None:
    """Print the manual page.

    `gander man > gander.1`, and `man ./gander.1` reads it.
    """
    typer.echo(manual(typer.main.get_command(app), __version__), nl=False)


@app.command(name="version")
def version() -> None:
    """Show the version."""
    typer.echo(f"gander {__version__}")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


@app.callback()
def _gander(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    app()
