"""The flags of `gander bench serve`: names, defaults, and how they are split between the benchmark and its servers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding.bench.options import numbers, positive

CLIENTS = (1, 8, 32, 64)
LATE_PROMPT_STREAMS = (8,)
MAX_TOKENS, LATE_PROMPT_MAX_TOKENS = 128, 1000
LEAST_REQUESTS, REQUESTS_PER_CLIENT = 32, 8
SERVER_MARKS = ("--", "--against")
ENDPOINTS = ("chat", "completions", "token-ids")
ENDPOINT_HELP = "what is asked (default chat); token-ids: completions of the prompts as the first server tokenizes them"
DESCRIPTION = """Measure a server through HTTP, with a fixed number of clients, each of which sends its next request as
soon as it has the last reply. Without --url it starts `gander serve` with the flags after `--`; the flags after each
--against are those of one more server, and rounds of all of them are interleaved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """urls: running servers; server_flags: where there are no urls, the flags of each server to start; images: of each
    conversation, with image_side x image_side pixels; late_prompt: how many tokens the prompt has that arrives while
    streams run, or None."""

    urls: tuple[str, ...]
    server_flags: tuple[tuple[str, ...], ...]
    api_key: str | None
    clients: tuple[int, ...]
    num_requests: int | None
    rounds: int
    prompts: Path | None
    endpoint: str
    shared_prefix: int
    turns: int
    images: int
    image_side: int
    late_prompt: int | None
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool
    out: Path | None

    def num_conversations(self, clients: int) -> int:
        """How many conversations one round with so many clients has."""
        requests = self.num_requests or max(LEAST_REQUESTS, REQUESTS_PER_CLIENT * clients)
        return -(-requests // self.turns)


def parse(argv: Sequence[str]) -> BenchOptions:
    """Read the flags. Where they are wrong, the process ends with status 2 and a sentence."""
    mine, servers = split_servers(argv)
    parser = _parser()
    chosen = vars(parser.parse_args(mine))
    urls, is_late = chosen.pop("url"), chosen["late_prompt"] is not None
    if urls and any(servers):
        parser.error("--url measures running servers; flags of servers to start cannot be given with it")
    if chosen["turns"] > 1 and chosen["endpoint"] != "chat":
        parser.error("--turns makes conversations, which need --endpoint chat")
    if chosen["images"] and chosen["endpoint"] != "chat":
        parser.error("--images go into messages, which need --endpoint chat")
    chosen["clients"] = chosen["clients"] or (LATE_PROMPT_STREAMS if is_late else CLIENTS)
    chosen["max_tokens"] = chosen["max_tokens"] or (LATE_PROMPT_MAX_TOKENS if is_late else MAX_TOKENS)
    chosen["ignore_eos"] |= is_late  # streams should outlast the prompt
    return BenchOptions(urls=tuple(urls), server_flags=servers, **chosen)


def split_servers(argv: Sequence[str]) -> tuple[list[str], tuple[tuple[str, ...], ...]]:
    """The benchmark's own flags, and those of each server to start, of which there is at least one."""
    first = next((place for place, flag in enumerate(argv) if flag in SERVER_MARKS), len(argv))
    servers: list[list[str]] = [[]]
    for place, flag in enumerate(argv[first:]):
        if flag == "--against":
            servers.append([])
        elif place or flag != "--":
            servers[-1].append(flag)
    return list(argv[:first]), tuple(tuple(flags) for flags in servers)


def _parser() -> argparse.ArgumentParser:
    usage = "gander bench serve [options] [-- flags of gander serve] [--against flags of gander serve]..."
    parser = argparse.ArgumentParser("gander bench serve", usage, DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("--url", action="append", default=[], help="a running server; given again: one more to compare with the first")
    add("--api-key", help="sent to every server")
    add("--clients", type=numbers, help="numbers of clients, separated by commas (default 1,8,32,64)")
    add("--num-requests", type=positive, help="requests of each round (default 8 a client, at least 32)")
    add("--rounds", type=positive, default=1, help="rounds of each number of clients on each server (default 1)")
    add("--prompts", type=Path, help="file of JSON lines with prompt, messages or turns; default: bundled prompts")
    add("--endpoint", choices=ENDPOINTS, default="chat", help=ENDPOINT_HELP)
    add("--shared-prefix", type=int, default=0, metavar="N", help="tokens that all prompts begin with")
    add("--turns", type=positive, default=1, metavar="N", help="turns of a conversation, each with the whole history")
    add("--images", type=positive, default=0, metavar="N", help="pictures in each conversation's first message")
    add("--image-side", type=positive, default=512, metavar="N", help="pixels of a picture's side (default 512)")
    add("--late-prompt", type=positive, metavar="N", help="tokens of a prompt that arrives while --clients streams run")
    add("--max-tokens", type=positive, help="most tokens of a reply (default 128, with --late-prompt 1000)")
    add("--temperature", type=float, default=0.0, help="default 0, which is greedy")
    add("--seed", type=int, default=0, help="seed of the first conversation; each next one has the next seed")
    add("--ignore-eos", action="store_true", help="replies have --max-tokens tokens; not every server knows this field")
    add("--out", type=Path, help="file to write the tables to, as Markdown")
    return parser
