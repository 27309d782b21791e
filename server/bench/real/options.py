"""The flags of `gander bench real`. Owns names and defaults; measures nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding.bench.options import floats, names, numbers, positive
from decoding.training.public_prompts import PROMPT_SETS
from server.bench.options import split_servers

METHODS = ("none", "auto", "spine", "stand", "dynamic", "suffix", "lookup")
TEMPERATURES = (0.0, 0.7, 1.0)
AT_ONCE = (1, 4, 16)
DESCRIPTION = """Serve MODEL, ask it every prompt by each method, in random order, before the next prompt, and tell how
much sooner each method answers than plain decoding, how `auto` does beside the best single method, and whether the
tokens are the same. The flags after --against are those of one more server, of another kind of weights for instance,
which is asked the same in the same rounds. With --url servers that run already are asked. Sessions begin empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOptions:
    """urls: of one or two running servers; server_flags: where there are no urls, the model and flags of each server to
    start. data: the folder of prompt files; methods: None for all that the server has of `METHODS`; at_once: numbers of
    requests; name: what tables call the model, or None for what the server calls it; out: a JSON file that keeps the
    run, or None; is_anew: replace the file's run of this model instead of going on with it."""

    urls: tuple[str, ...]
    server_flags: tuple[tuple[str, ...], ...]
    api_key: str | None
    data: Path
    workloads: tuple[str, ...]
    methods: tuple[str, ...] | None
    temperatures: tuple[float, ...]
    at_once: tuple[int, ...]
    prompts: int
    rounds: int
    max_tokens: int
    seed: int
    name: str | None
    note: str
    out: Path | None
    is_anew: bool

    def num_prompts(self, at_once: int) -> int:
        """Prompts of a workload: full groups of `at_once`, and at least `prompts`."""
        return -(-self.prompts // at_once) * at_once


def parse(argv: Sequence[str]) -> RealOptions:
    """Ends the process with status 2 and a sentence where flags are wrong."""
    mine, servers = split_servers(argv)
    parser = _parser()
    chosen = vars(parser.parse_args(mine))
    urls = tuple(chosen.pop("url"))
    if urls and any(servers):
        parser.error("--url measures running servers; models to serve cannot be given with it")
    if not urls and not all(servers):
        parser.error("name a model to serve after --, or a running server with --url")
    if max(len(urls), len(servers)) > 2:
        parser.error("at most two servers are compared")
    return RealOptions(urls=urls, server_flags=servers, **chosen)


def method_and_nodes(label: str) -> tuple[str, int | None]:
    """METHOD, or METHOD-NODES for trees of so many nodes."""
    method, _, nodes = label.partition("-")
    return method, int(nodes) if nodes else None


def _methods(text: str) -> tuple[str, ...]:
    found = names(text)
    for label in found:
        if not re.fullmatch(r"\w+(-[1-9][0-9]*)?", label):
            raise argparse.ArgumentTypeError(f"{label!r} is neither METHOD nor METHOD-NODES")
    return found


def _parser() -> argparse.ArgumentParser:
    usage = "gander bench real --data FOLDER [options] -- MODEL [flags of gander serve] [--against MODEL [flags]]"
    parser = argparse.ArgumentParser("gander bench real", usage, DESCRIPTION, allow_abbrev=False)
    files = ", ".join(prompt_set.file for prompt_set in PROMPT_SETS.values())
    add = parser.add_argument
    add("--url", action="append", default=[], help="a running server with a chat template; given again: a second one")
    add("--api-key", help="sent to all servers")
    add("--data", type=Path, required=True, metavar="FOLDER", help=f"has {files}; what is missing is left out")
    add("--workloads", type=names, default=tuple(PROMPT_SETS), help=f"default {','.join(PROMPT_SETS)}")
    forced = "METHOD-8 has trees of 8 nodes, whatever they cost"
    add("--methods", type=_methods, help=f"default: of {','.join(METHODS)} those that the server has; {forced}")
    add("--temperatures", type=floats, default=TEMPERATURES, help="default 0,0.7,1")
    add("--at-once", type=numbers, default=AT_ONCE, help="numbers of requests at once (default 1,4,16)")
    add("--prompts", type=positive, default=12, help="of each workload, spread evenly over its file (default 12)")
    add("--rounds", type=positive, default=1, help="how often all of it is asked, with new sessions (default 1)")
    add("--max-tokens", type=positive, default=160, help="most tokens of a reply (default 160)")
    add("--seed", type=int, default=1, help="of every reply")
    add("--name", help="what tables call the model; default: its own name, with its draft model's")
    add("--note", default="", help="kept with the figures, such as the commits of both servers")
    add("--out", type=Path, help="a JSON file that is written after every row, and that a later call goes on with")
    add("--anew", action="store_true", dest="is_anew", help="replace what --out has of this model")
    return parser
