"""The `gander` command: serve, doctor, connect, bench, tune-tree, train-head, ray-config, version.

The flags of `serve` are made from `ServerSettings`, which defines each once. Every command imports the heavy modules
that it needs itself, so that the others start quickly.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from decoding import __version__
from decoding.config import BUNDLED_MODEL
from decoding.errors import GanderError
from decoding.process.terminal import outlive_hangups
from server.config import ServerSettings
from server.http.keys import is_hashed

app = typer.Typer(
    help="An OpenAI-compatible server with tree speculative decoding.", no_args_is_help=True, rich_markup_mode=None
)
ALIASES = {"workers": "--data-parallel-size"}  # what vLLM calls a setting
SERVER_BENCHES = {"serve": "server.bench.__main__", "real": "server.bench.real.__main__"}
SECRETS = ("api_keys", "admin_keys")  # settings that hold keys
# Variables GANDER_ of others: of tests, of `gander connect`, of Kubernetes and compose.
FOREIGN = re.compile("TEST_|REAL_MODELS$|API_KEY$|SERVICE_|PORT_|(BASE|GPUS|PUBLISHED_PORT)$")
PASS_THROUGH = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,  # else click would drop `--`
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def serve(**options: Any) -> None:
    """Serve a model over HTTP.

    MODEL is a Hugging Face name, a folder, a GGUF file, or, by default, the small bundled model.

    Each option can also be set in the environment, --max-running as GANDER_MAX_RUNNING. What is given here wins.
    """
    outlive_hangups()  # the runner, which takes seconds to import, has handlers of its own
    given = {name: value for name, value in options.items() if value is not None}
    settings = _checked(given)
    _hide_keys(given)
    _warn_of_unknown_variables()
    from server.process.runner import run

    raise typer.Exit(run(settings))


def _checked(given: Mapping[str, Any]) -> ServerSettings:
    """Build the settings; where some are wrong, print a line for each and exit with status 2."""
    try:
        return ServerSettings(**given)
    except ValidationError as error:
        for detail in error.errors():
            name = "-".join(str(part) for part in detail["loc"]).replace("_", "-")
            Console(stderr=True).print(f"[red]--{name}:[/red] {escape(detail['msg'])}", highlight=False)
        raise typer.Exit(2) from None


def _status(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """The exit status of a command: 2, with a sentence, where it cannot do what was asked of it."""
    try:
        return main(arguments)
    except GanderError as error:
        Console(stderr=True).print(f"[red]Error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2


def _hide_keys(given: Mapping[str, Any]) -> None:
    """Remove keys from the environment, which child processes inherit, and warn of keys that were given as flags."""
    for name in SECRETS:
        os.environ.pop(f"GANDER_{name.upper()}", None)
        if name in given and not all(is_hashed(key.strip()) for key in given[name].split(",")):
            flag = name.replace("_", "-")
            sentence = (
                "every user of this machine can read it there; use --api-key-file, the environment or sha256:HEX."
            )
            Console(stderr=True).print(
                f"[yellow]--{flag} has a key:[/yellow] {sentence}", highlight=False, soft_wrap=True
            )


def _warn_of_unknown_variables() -> None:
    """Name the variables that look like settings and are none, but for those of tests, and those that Kubernetes sets
    for a service named gander."""
    for name in sorted(os.environ):
        setting = name.removeprefix("GANDER_")
        if setting != name and setting.lower() not in ServerSettings.model_fields and not FOREIGN.match(setting):
            sentence = "this variable is no setting of gander serve, and is ignored."
            Console(stderr=True).print(f"[yellow]{escape(name)}:[/yellow] {sentence}", highlight=False, soft_wrap=True)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The typer parameter of one setting. Its default is None: the environment or the setting's default then holds."""
    default = "" if field.default is None or field.default is False else f" (default {field.default})"
    text = f"{field.description}{default}"
    if name == "model":
        info: Any = typer.Argument(help=text, show_default=False)
    else:
        words = name.replace("_", "-")
        flag = f"--{words}/--no-{words}" if field.default is True else f"--{words}"
        names = (flag, ALIASES[name]) if name in ALIASES else (flag,)
        info = typer.Option(*names, help=text, show_default=False)
    annotation = operator.getitem(Annotated, (field.annotation | None, info))  # type: ignore[operator]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _with_settings_flags(command: Any) -> Any:
    parameters = [_parameter(name, field) for name, field in ServerSettings.model_fields.items()]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


app.command(name="serve")(_with_settings_flags(serve))


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

    raise typer.Exit(_status(lambda _: main(tool, url, key, write), []))


@app.command(name="bench", context_settings=PASS_THROUGH)
def bench(context: typer.Context) -> None:
    """Measure a model of yours, a server, or an engine.

    `bench real` measures every drafting method on your model, `bench serve` a server; `bench --help` names the others.
    """
    name, *rest = context.args or [""]
    module = SERVER_BENCHES.get(name)
    main = importlib.import_module(module or "decoding.bench.__main__").main
    raise typer.Exit(_status(main, rest if module else context.args))


@app.command(name="tune-tree", context_settings=PASS_THROUGH)
def tune_tree(context: typer.Context) -> None:
    """Tune a static tree for STAND."""
    module = importlib.import_module("decoding.training.tune_tree")
    raise typer.Exit(_status(module.main, context.args))


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
    settings = _checked(given)
    if unused := sorted(OF_THE_PORT & given.keys()):
        flags = ", ".join(name.replace("_", "-") for name in unused)
        raise typer.BadParameter(f"{flags}: the port is Ray's, which has settings of its own", param_hint="--set")
    most = replicas if max_replicas is None else max_replicas
    if most < replicas:
        raise typer.BadParameter(f"{most} is less than --replicas {replicas}", param_hint="--max-replicas")
    options = RayOptions(replicas, most, cpus, gpus, settings.host, settings.port)
    typer.echo(written(config_of(options, settings.model_dump(mode="json", include=given.keys() - {"host", "port"}))))


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
