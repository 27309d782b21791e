"""Runs a benchmark: warm-up, then rounds on all servers in turn, then the tables.

Owns which conversations go where. Invariant: every server gets the same conversations in the same rounds, and no two
rounds on one server share a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.progress import Progress

from decoding.bench.progress import bars_on
from decoding.bench.tables.table import Table
from server.bench.closed_loop import ClosedLoop, Run
from server.bench.conversations import Conversation, Message, filler, make_conversations, read_rows, text_of
from server.bench.figures import Figures
from server.bench.late_prompt import LatePrompt, measure_late_prompt
from server.bench.measured_server import MeasuredServer
from server.bench.options import BenchOptions
from server.bench.pictures import picture_url
from server.bench.report import late_prompt_table, load_table, memory_table, turns_table

WARM_UP_CLIENTS, WARM_UP_CONVERSATIONS, WARM_UP_TOKENS = 4, 8, 16
TOKEN_CHARACTERS = 12  # more characters than a token of text has on average


class Bench:
    """One benchmark of several servers; the others are compared with the first."""

    def __init__(self, options: BenchOptions, console: Console, servers: Sequence[MeasuredServer]) -> None:
        self._options = options
        self._console = console
        self._servers = servers
        self.num_failed = 0

    async def run(self) -> list[Table]:
        """Measure all servers, print warnings about the figures, and return the tables."""
        options = self._options
        sizes = [options.num_conversations(clients) for clients in options.clients for _ in range(options.rounds)]
        if options.late_prompt is not None:
            sizes = [clients for clients in options.clients for _ in range(options.rounds)]
        conversations = await self._conversations(sum(sizes) + WARM_UP_CONVERSATIONS)
        short = replace(options, max_tokens=min(WARM_UP_TOKENS, options.max_tokens))
        warm_up, conversations = conversations[:WARM_UP_CONVERSATIONS], conversations[WARM_UP_CONVERSATIONS:]
        with bars_on(self._console) as bars:
            for server in self._servers:
                await ClosedLoop(server, short).run(warm_up, WARM_UP_CLIENTS)
            if options.late_prompt is not None:
                return [await self._late_prompts(bars, conversations, options.late_prompt)]
            return await self._loads(bars, conversations)

    async def _loads(self, bars: Progress, conversations: Sequence[Conversation]) -> list[Table]:
        options, found, begin = self._options, [], 0
        for clients in options.clients:
            count = options.num_conversations(clients)
            runs: list[list[Run]] = [[] for _ in self._servers]
            bar = bars.add_task(f"{clients} clients", total=count * options.turns * options.rounds * len(self._servers))
            for _ in range(options.rounds):
                mine = conversations[begin : begin + count]
                begin += count
                for server, done in zip(self._servers, runs, strict=True):
                    loop = ClosedLoop(server, options, partial(bars.advance, bar))
                    done.append(await loop.run(mine, clients))
            here = [Figures(server.label, clients, done) for server, done in zip(self._servers, runs, strict=True)]
            self._say_errors(here)
            found += here
        tables = [load_table(found)]
        if options.turns > 1:
            tables.append(turns_table(found))
        if any(len(run.memory) > 2 for row in found for run in row.runs):
            tables.append(memory_table(found))
        return tables

    async def _late_prompts(self, bars: Progress, conversations: Sequence[Conversation], num_tokens: int) -> Table:
        options, rows, begin = self._options, [], 0
        for streams in options.clients:
            found: list[list[LatePrompt]] = [[] for _ in self._servers]
            bar = bars.add_task(f"{streams} streams", total=options.rounds * len(self._servers))
            for _ in range(options.rounds):
                mine = conversations[begin : begin + streams]
                begin += streams
                token_ids = await self._filler_ids(begin, num_tokens)
                for server, done in zip(self._servers, found, strict=True):
                    done.append(await measure_late_prompt(server, options, mine, streams, token_ids))
                    bars.advance(bar)
            rows += [
                (server.label, streams, num_tokens, done) for server, done in zip(self._servers, found, strict=True)
            ]
        return late_prompt_table(rows)

    async def _conversations(self, count: int) -> list[Conversation]:
        options = self._options
        prefix = ""
        if options.shared_prefix:
            prefix = await self._servers[0].text_of(await self._filler_ids(0, options.shared_prefix))
        rows = read_rows(options.prompts, count * options.turns)
        if len(rows) < count * options.turns and options.turns == 1:
            self._console.print(
                f"There are {len(rows)} prompts for {count} requests: they come again, and what a server "
                "remembers of them shows in its figures."
            )
        conversations = make_conversations(rows, count, options.turns, prefix)
        if options.images:
            return [self._with_pictures(conversation) for conversation in conversations]
        if options.endpoint != "token-ids":
            return conversations
        return [await self._as_token_ids(conversation) for conversation in conversations]

    def _with_pictures(self, conversation: Conversation) -> Conversation:
        """With pictures that no other conversation has."""
        count, side = self._options.images, self._options.image_side
        numbers = range(conversation.number * count, (conversation.number + 1) * count)
        return replace(conversation, pictures=tuple(picture_url(number, side) for number in numbers))

    async def _as_token_ids(self, conversation: Conversation) -> Conversation:
        said: list[Message] = [*conversation.opening, {"content": conversation.turns[0]}]
        return replace(conversation, token_ids=tuple(await self._servers[0].token_ids(text_of(said))))

    async def _filler_ids(self, number: int, num_tokens: int) -> list[int]:
        """Token ids of some text, `num_tokens` of them, by the first server's tokenizer."""
        token_ids = await self._servers[0].token_ids(filler(number, num_tokens * TOKEN_CHARACTERS))
        assert len(token_ids) >= num_tokens, (len(token_ids), num_tokens)
        return token_ids[:num_tokens]

    def _say_errors(self, rows: Sequence[Figures]) -> None:
        for row in rows:
            self.num_failed += len(row.errors)
            if row.errors:
                self._console.print(
                    f"[red]{row.label}, {row.clients} clients: {len(row.errors)} requests failed, "
                    f"the first with:[/red] {row.errors[0]}",
                    soft_wrap=True,
                )
