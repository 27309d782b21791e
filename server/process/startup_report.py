"""What a start prints: the worker's progress, then what was loaded, the address and a first command to try."""

from __future__ import annotations

import json

from rich.console import Console
from rich.markup import escape

from decoding.process.machine import cores
from server.engine_client.status import EngineStatus
from server.service import Service

EXAMPLE = {"prompt": "def fibonacci(n):\n", "max_tokens": 64, "stream": True}


class StartupReport:
    """Prints the worker's progress while the server starts, then the address and a first command to try."""

    def __init__(self, console: Console, service: Service, url: str) -> None:
        self._console = console
        self._service = service
        self._url = url
        self._last = ""
        self._num_compiling = 0
        name = escape(service.settings.model_name)
        self._say(f"[bold]Gander[/bold] is starting [cyan]{name}[/cyan]; {url}/ready says when.")

    def show(self, status: EngineStatus) -> None:
        """Print each new sentence of progress once, and the address when the server becomes ready."""
        if status.state == "ready" and self._last != "ready":
            self._last = "ready"
            self._show_ready()
            self._show_compiling(status)
        elif status.state == "loading" and status.sentence != self._last:
            self._last = status.sentence
            self._console.print(
                f"[dim]{status.fraction:4.0%}[/dim]  {escape(status.sentence)}", highlight=False, soft_wrap=True
            )
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
        engine = self._service.client.ready
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
        self._console.print(
            f"[green]ready[/green] {escape(engine.model)}: {engine.parameters / 1e6:.1f}M parameters, "
            f"{weights}{engine.dtype} on {place}, attention {engine.attention} ({exactness}), "
            f"{engine.max_model_len} tokens, loaded in {engine.load_seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
        num_workers = self._service.settings.workers
        takers = "the worker takes" if num_workers == 1 else f"the {num_workers} workers take"
        num_ranks = num_workers * self._service.settings.tensor_parallel_size
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
        self._say(f"Open [bold cyan]{self._url}[/bold cyan] and press Race.")
        self._say(f"The API is at [bold cyan]{self._url}/v1[/bold cyan]. Try it:")
        body = json.dumps(EXAMPLE)
        command = f"  curl -N {self._url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
        self._console.print(command, highlight=False, markup=False, soft_wrap=True)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=True)
