"""The course of a measurement: every prompt by every method on every server, before the next prompt.

Owns the order and the names of sessions. Invariant: a session is used by one method on one workload at one temperature
in one round on one server, so that nothing is learned from the replies of another method, round or server.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from server.bench.measured_server import MeasuredServer
from server.bench.pretrained.figures import Answer, Row, rows_of
from server.bench.pretrained.options import PretrainedOptions

POLL_SECONDS = 0.5
WARM_UP_PROMPT, WARM_UP_TOKENS = "Say hello.", 16


class Rounds:
    """Asks one or two servers, one request at a time."""

    def __init__(
        self, options: PretrainedOptions, servers: Sequence[MeasuredServer], on_answer: Callable[[], object]
    ) -> None:
        self._options = options
        self._servers = servers
        self._on_answer = on_answer
        self._run_id = uuid4().hex  # two runs on one server share no session

    async def warm_up(self) -> None:
        """Wait until nothing is being compiled, then have every method used once."""
        for server in self._servers:
            while (await server.status()).get("compiling"):
                await asyncio.sleep(POLL_SECONDS)
            for method in self._options.methods:
                await self._ask(server, WARM_UP_PROMPT, method, 0.0, "warm-up", WARM_UP_TOKENS)

    async def measure(self, workload: str, temperature: float, prompts: Sequence[str]) -> list[Row]:
        """All rounds of one workload at one temperature. Raises ServerError for a request that is not answered."""
        options = self._options
        found: dict[str, list[list[Answer]]] = {method: [[] for _ in self._servers] for method in options.methods}
        turns = [(place, method) for method in options.methods for place in range(len(self._servers))]
        for number in range(options.rounds):
            for prompt in prompts:
                random.Random(f"{number} {prompt}").shuffle(turns)
                for place, method in turns:
                    session = f"{number}-{place}-{workload}-{temperature}"
                    ask = self._ask(self._servers[place], prompt, method, temperature, session, options.max_tokens)
                    found[method][place].append(await ask)
                    self._on_answer()
        return rows_of(workload, temperature, found)

    async def _ask(
        self, server: MeasuredServer, prompt: str, method: str, temperature: float, session: str, max_tokens: int
    ) -> Answer:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": self._options.seed,
            "session_id": f"{self._run_id}-{session}-{method}",
            "speculation": {"method": method, "report": True},
            "return_token_ids": True,
        }
        return Answer.of(await server.reply(body))
