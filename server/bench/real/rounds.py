"""The course of a measurement: every group of prompts by every method on every server, before the next group.

Owns the order and the names of sessions. Invariant: a session is used by one method in one row in one round on one
server, so that nothing is learned from the replies of another method, row, round or server.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from decoding.training.public_prompts import Prompt
from server.bench.measured_server import MeasuredServer
from server.bench.real.figures import Answer, Group, Row, Setting, rows_of
from server.bench.real.options import RealOptions, method_and_nodes

POLL_SECONDS = 0.5
PAPERS_NODES = {"lookup": 10, "suffix": 64}  # methods to hold `auto` against draft what their papers do, at any price
WARM_UP, WARM_UP_TOKENS = Prompt(("Say hello.",)), 16


class Rounds:
    """Asks one or two servers. on_answer: is called for every reply."""

    def __init__(
        self,
        options: RealOptions,
        servers: Sequence[MeasuredServer],
        methods: Sequence[str],
        on_answer: Callable[[], object],
    ) -> None:
        self._options = options
        self._servers = servers
        self._methods = methods
        self._on_answer = on_answer
        self._run_id = uuid4().hex  # two runs on one server share no session

    async def warm_up(self) -> None:
        """Wait until nothing is being compiled, then have every method used once."""
        for server in self._servers:
            while (await server.status()).get("compiling"):
                await asyncio.sleep(POLL_SECONDS)
            for method in self._methods:
                await self._ask(server, WARM_UP, self._body(method, 0.0, "warm-up", WARM_UP_TOKENS))

    async def measure(self, setting: Setting, prompts: Sequence[Prompt]) -> list[Row]:
        """All rounds of one setting. Raises ServerError for a request that is not answered."""
        found: dict[str, list[list[Group]]] = {method: [[] for _ in self._servers] for method in self._methods}
        turns = [(place, method) for method in self._methods for place in range(len(self._servers))]
        groups = [prompts[first : first + setting.at_once] for first in range(0, len(prompts), setting.at_once)]
        for number in range(self._options.rounds):
            for group in groups:
                random.Random(f"{number} {group[0].turns[0]}").shuffle(turns)
                for place, method in turns:
                    session = f"{number}-{place}-{setting.workload}-{setting.temperature}-{setting.at_once}"
                    body = self._body(method, setting.temperature, session, self._options.max_tokens)
                    asks = [self._ask(self._servers[place], prompt, body) for prompt in group]
                    found[method][place].append(await asyncio.gather(*asks))
        return rows_of(setting, found)

    def _body(self, label: str, temperature: float, session: str, max_tokens: int) -> dict[str, Any]:
        method, max_nodes = method_and_nodes(label)
        nodes = {"max_nodes": max_nodes or PAPERS_NODES[method]} if max_nodes or method in PAPERS_NODES else {}
        return {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": self._options.seed,
            "session_id": f"{self._run_id}-{session}-{label}",
            "speculation": {"method": method, "report": True} | nodes,
            "return_token_ids": True,
        }

    async def _ask(self, server: MeasuredServer, prompt: Prompt, body: dict[str, Any]) -> Answer:
        """All turns of the prompt, one after the other."""
        if prompt.prediction is not None:
            body = body | {"prediction": {"type": "content", "content": prompt.prediction}}
        if prompt.schema is not None:
            schema = {"name": "record", "schema": prompt.schema, "strict": True}
            body = body | {"response_format": {"type": "json_schema", "json_schema": schema}}
        messages: list[dict[str, str]] = []
        replies = []
        for said in prompt.turns:
            messages = [*messages, {"role": "user", "content": said}]
            replies.append(await server.reply(body | {"messages": messages}))
            answered = replies[-1]["choices"][0]["message"]["content"] or ""
            messages = [*messages, {"role": "assistant", "content": answered}]
        self._on_answer()
        return Answer.of(replies)
