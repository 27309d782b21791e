"""What a person sees while the server starts: the worker's sentences, then the address and a first command.

Owns the words on the console; knows nothing of the engine beyond its status.
"""

from __future__ import annotations

import json

from rich.console import Console
from rich.markup import escape

from server.engine_client.client import EngineStatus
from server.service import Service

EXAMPLE = {"prompt": "def fibonacci(n):\n", "max_tokens": 64, "stream": True}


class StartupReport:
    """Called with every status; shows each sentence once and the address when requests can come."""

    def __init__(self, console: Console, service: Service, url: str) -> None:
        self._console = console
        self._service = service
        self._url = url
        self._last = ""
        console.print(
            f"[bold]Gander[/bold] is starting [cyan]{service.settings.model_name}[/cyan]; {url}/ready says when."
        )

    def __call__(self, _: EngineStatus) -> None:
        status = self._service.status
        if status.state == "ready" and self._last != "ready":
            self._last = "ready"
            self._show_ready()
        elif status.state == "loading" and status.sentence != self._last:
            self._last = status.sentence
            self._console.print(
                f"[dim]{status.fraction:4.0%}[/dim]  {escape(status.sentence)}", highlight=False, soft_wrap=True
            )
        elif status.state != "ready":
            self._last = status.state

    def _show_ready(self) -> None:
        engine = self._service.client.ready
        assert engine is not None
        exactness = "exact" if engine.is_exact else "not exact on this machine"
        self._console.print(
            f"[green]ready[/green] {escape(engine.model)}: {engine.parameters / 1e6:.1f}M parameters, "
            f"{engine.dtype} on {engine.device}, attention {engine.attention} ({exactness}), "
            f"{engine.max_model_len} tokens, loaded in {engine.load_seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
        self._say(f"Open [bold cyan]{self._url}[/bold cyan] and press Race.")
        self._say(f"The API is at [bold cyan]{self._url}/v1[/bold cyan]. Try it:")
        body = json.dumps(EXAMPLE)
        command = f"  curl -N {self._url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
        self._console.print(command, highlight=False, markup=False, soft_wrap=True)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=True)
