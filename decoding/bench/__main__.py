"""The benchmarks of engines: `gander bench NAME`, or `python -m decoding.bench NAME`. Each has options of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import transformers

COMMANDS = {
    "architectures": "decoding.bench.architectures.__main__",
    "drafting": "decoding.bench.drafting",
    "heads": "decoding.bench.heads.__main__",
    "neighbours": "decoding.bench.neighbours",
    "peers": "decoding.bench.peers.__main__",
    "prompts": "decoding.bench.prompts",
    "replay": "decoding.bench.replay.__main__",
    "samples": "decoding.bench.samples.__main__",
    "shapes": "decoding.bench.shapes",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that the first argument names; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="gander bench", description="Measure Gander on this machine.")
    parser.add_argument(
        "name", choices=("pictures", "real", "serve", *COMMANDS), help="which benchmark; NAME --help has its options"
    )
    name = parser.parse_args(given[:1]).name
    if name not in COMMANDS:
        parser.error(f"{name} measures servers: gander bench {name}")
    transformers.utils.logging.disable_progress_bar()  # it would overwrite ours
    status: int = import_module(COMMANDS[name]).main(given[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
