"""What a start prints: the progress of what is loaded, then what that is, the address and a first command to try."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from decoding.process.machine import cores
from server.engine_client.status import EngineStatus
from server.models.model import Model

EXAMPLE = {"prompt": "def fibonacci(n):\n", "max_tokens": 64, "stream": True}


def report_start(console: Console, models: Sequence[Model], url: str) -> None:
    """Print what the server at `url` serves, and from now on how each model is loaded."""
    names = ", ".join(f"[cyan]{escape(model.name)}[/cyan]" for model in models)
    if len(models) == 1:
        line = f"[bold]Gander[/bold] is starting {names}; {url}/ready says when."
    else:
        line = f"[bold]Gander[/bold] serves {names}, each once a request names it."
    console.print(line, highlight=False, soft_wrap=True)
    if len(models) > 1:
        _say_where(console, url)
    for model in models:
        model.subscribe(_ModelReport(console, model, url if len(models) == 1 else None).show)


def _say_where(console: Console, url: str) -> None:
    for sentence in (
        f"Open [bold cyan]{url}[/bold cyan] and press Race.",
        f"The API is at [bold cyan]{url}/v1[/bold cyan]. Try it:",
    ):
        console.print(sentence, highlight=False, soft_wrap=True)
    body = json.dumps(EXAMPLE)
    command = f"  curl -N {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
    console.print(command, highlight=False, markup=False, soft_wrap=True)


class _ModelReport:
    """Prints a model's progress while it is loaded, and what was. url: told then, None where it is told already; the
    lines then begin with the model's name."""

    def __init__(self, console: Console, model: Model, url: str | None) -> None:
        self._console = console
        self._model = model
        self._url = url
        self._begin = "" if url is not None else f"[cyan]{escape(model.name)}[/cyan] "
        self._last = ""
        self._num_compiling = 0

    def show(self, status: EngineStatus) -> None:
        """Print each new sentence of progress once, and what was loaded when it becomes ready."""
        if status.state == "ready" and self._last != "ready":
            self._last = "ready"
            self._show_ready()
            self._show_compiling(status)
        elif status.state == "loading" and status.sentence != self._last:
            self._last = status.sentence
            self._say(f"[dim]{status.fraction:4.0%}[/dim]  {escape(status.sentence)}")
        elif status.state != "ready":
            self._last = status.state
        elif len(status.compiling) != self._num_compiling:
            self._show_compiling(status)

    def _show_compiling(self, status: EngineStatus) -> None:
        """Print what is still to be compiled, or that everything is."""
        if status.compiling:
            self._say(f"Still to be compiled, and plain until then: {', '.join(status.compiling)}.")
        elif self._num_compiling:
            self._say("Everything is compiled.")
        self._num_compiling = len(status.compiling)

    def _show_ready(self) -> None:
        engine = self._model.client.ready
        assert engine is not None
        place = f"cpu with {cores()}" if engine.device == "cpu" else engine.device
        weights = "" if engine.weights == engine.dtype else f"{engine.weights} weights, "
        exactness = "exact" if engine.is_exact else "not exact on this machine"
        if engine.is_exact and engine.device != "cpu":
            exactness = "exact in batches, trees, prompts and after prefix hits, as tried on this device"
        elif engine.exact_rows and not engine.is_exact:
            exactness = (
                f"exact in batches and trees of up to {engine.exact_rows} tokens, not in prompts or after prefix hits"
            )
        self._say(
            f"[green]ready[/green] {escape(engine.model)}: {engine.parameters / 1e6:.1f}M parameters, "
            f"{weights}{engine.dtype} on {place}, attention {engine.attention} ({exactness}), "
            f"{engine.max_model_len} tokens, loaded in {engine.load_seconds:.1f} s"
        )
        if engine.exact_cost is not None:
            choice = "so they are used" if engine.is_row_exact else "so they are not used; --exact insists on them"
            self._say(f"Exact {engine.exact_cost}, {choice}.")
        if engine.inexact_reason is not None:
            self._say(f"[yellow]{escape(engine.inexact_reason)}[/yellow]")
        num_workers = self._model.settings.workers
        takers = "the worker takes" if num_workers == 1 else f"the {num_workers} workers take"
        num_ranks = num_workers * self._model.settings.tensor_parallel_size
        ranks = f", {engine.expected_bytes / num_ranks / 2**30:.1f} on each rank," if num_ranks > num_workers else ""
        kept = "" if engine.kv_dtype in ("", engine.dtype) else f" in {engine.kv_dtype}"
        carried = f", each with {engine.state_bytes / 2**20:.2f} MiB that layers carry" if engine.state_bytes else ""
        self._say(
            f"The KV cache has room for {engine.kv_slots:,} tokens{kept}; "
            f"{engine.max_running} requests run at a time{carried}; "
            f"once full, {takers} {engine.expected_bytes / 2**30:.1f} GiB{ranks} and what sessions remember."
        )
        if engine.context_note is not None:
            self._say(f"[yellow]{escape(engine.context_note)}[/yellow]")
        if self._url is not None:
            _say_where(self._console, self._url)

    def _say(self, sentence: str) -> None:
        self._console.print(self._begin + sentence, highlight=False, soft_wrap=True)
