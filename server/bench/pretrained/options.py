"""The flags of `gander bench pretrained`. Owns names and defaults; measures nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.bench.pretrained.prompts import WORKLOADS

METHODS = ("none", "auto", "spine", "stand", "suffix", "lookup", "recycle")
DESCRIPTION = """Ask a running `gander serve` every prompt once by each method, in random order, before the next prompt,
and tell how much sooner each method answers than plain decoding and whether the tokens are the same. With --against a
second server, of an older version for instance, is asked the same in the same rounds. Sessions begin empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedOptions:
    """What was asked for. against: the URL of a second server, or None; data: the folder of prompt files; name: what
    tables call the model, or None for what the server calls it; out: a JSON file that keeps the run, or None."""

    url: str
    against: str | None
    api_key: str | None
    data: Path
    workloads: tuple[str, ...]
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    prompts: int
    rounds: int
    max_tokens: int
    seed: int
    name: str | None
    note: str
    out: Path | None


def parse(argv: Sequence[str]) -> PretrainedOptions:
    """Ends the process with status 2 and a sentence where flags are wrong."""
    return PretrainedOptions(**vars(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gander bench pretrained", description=DESCRIPTION, allow_abbrev=False)
    files = ", ".join(workload.file for workload in WORKLOADS.values())
    add = parser.add_argument
    add("--url", required=True, help="a running server with a chat template")
    add("--against", metavar="URL", help="a second server; tables show the first one's speed over this one's")
    add("--api-key", help="sent to both servers")
    add("--data", type=Path, required=True, metavar="FOLDER", help=f"has {files}; what is missing is left out")
    add("--workloads", type=_names, default=tuple(WORKLOADS), help=f"default {','.join(WORKLOADS)}")
    add("--methods", type=_names, default=METHODS, help=f"default {','.join(METHODS)}")
    add("--temperatures", type=_floats, default=(0.0, 0.7), help="default 0,0.7")
    add("--prompts", type=_positive, default=6, help="of each workload, spread evenly over its file (default 6)")
    add("--rounds", type=_positive, default=1, help="how often all of it is asked, with new sessions (default 1)")
    add("--max-tokens", type=_positive, default=160, help="most tokens of a reply (default 160)")
    add("--seed", type=int, default=1, help="of every reply")
    add("--name", help="what tables call the model; default: what the server calls it")
    add("--note", default="", help="kept with the figures, such as the commits of both servers")
    add("--out", type=Path, help="a JSON file; its run of the same name, weights and servers is replaced")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
