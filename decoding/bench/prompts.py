"""How fast prompts are run, by their length: `gander bench prompts MODEL`, beside llama.cpp where it is installed.

In each round every engine answers one prompt of each length with one token, in turns; a prompt's rate is its tokens
over the seconds up to that token. Prompts are random tokens, and no two are the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product
from random import Random
from statistics import median

import msgspec
from rich.console import Console

from decoding.bench.machine import describe_machine
from decoding.bench.options import names, positive
from decoding.bench.peers.gate import IdleGate, MachineBusy
from decoding.bench.peers.loaded import LLAMA, load_both, plain_task, random_prompt
from decoding.bench.peers.peer_process import PeerFailed
from decoding.bench.peers.rounds import OURS, ratio
from decoding.bench.tables.table import UNKNOWN, Table

LENGTHS = ("600", "2400", "9000")
WARM_UP = 64  # tokens
LIMIT = 3600.0  # seconds for one prompt

Prompt = Callable[[list[int]], float]  # runs one, and returns the seconds up to its first token


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens a second of one engine at one length, one number for each round."""

    peer: str
    num_tokens: int
    rates: list[float] = []


def measure(engines: dict[str, Prompt], lengths: Sequence[int], rounds: int, gate: IdleGate) -> list[Rates]:
    """Raises MachineBusy from the gate, and what engines raise."""
    found = {(peer, length): Rates(peer=peer, num_tokens=length) for length, peer in product(lengths, engines)}
    rng = Random(0)
    for run in engines.values():
        run(random_prompt(rng, WARM_UP))
    for _ in range(rounds):
        for length in lengths:
            prompt, order = random_prompt(rng, length), list(engines)
            rng.shuffle(order)
            for peer in order:
                gate.wait()
                found[peer, length].rates.append(length / engines[peer](prompt))
    return list(found.values())


def table(found: Sequence[Rates]) -> Table:
    """A row for each length: medians over rounds; ours over llama.cpp's in the same round; and over our shortest's."""
    by_place = {(each.peer, each.num_tokens): each.rates for each in found}
    lengths = sorted({each.num_tokens for each in found})
    rows = []
    for length in lengths:
        ours, theirs = by_place[OURS, length], by_place.get((LLAMA, length))
        other = (UNKNOWN, UNKNOWN) if theirs is None else (f"{median(theirs):.0f}", f"{ratio(ours, theirs):.2f}")
        share = f"{ratio(ours, by_place[OURS, lengths[0]]):.2f}"
        rows.append((f"{length:,}", f"{median(ours):.0f}", *other, share))
    head = ("prompt tokens", "ours, tokens/s", f"{LLAMA}, tokens/s", "ratio", f"ours, of the rate at {lengths[0]:,}")
    return Table(head, rows)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench prompts", description=__doc__)
    add = parser.add_argument
    add("model", help="a GGUF file, which llama.cpp loads too; or a folder, or a hub name")
    add("--tokens", type=names, default=LENGTHS, help=f"of the prompts, apart by commas; default {','.join(LENGTHS)}")
    add("--rounds", type=positive, default=3)
    add("--threads", type=positive, help="of both; by default ours chooses, and llama.cpp uses all usable cores")
    add("--interpreter", default=sys.executable, metavar="PYTHON", help="one that has llama-cpp-python")
    add("--patience", type=float, default=60.0, help="seconds of waiting for idle moments, in all")
    add("--busy", action="store_true", help="go on when no idle moment has come, instead of ending")
    add("--json", action="store_true", help="print all rounds' figures as JSON instead of a table")
    chosen = parser.parse_args(argv)
    if not chosen.tokens or not all(each.isdecimal() and int(each) > 0 for each in chosen.tokens):
        parser.error(f"--tokens is positive numbers apart by commas, not {','.join(chosen.tokens)!r}")
    chosen.tokens = sorted({int(each) for each in chosen.tokens})
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    chosen, console = _parse(argv), Console(stderr=True)

    def say(sentence: str) -> None:
        console.print(sentence, soft_wrap=True, markup=False)

    try:
        with ExitStack() as stack:
            room = max(*chosen.tokens, WARM_UP) + 1
            loaded = load_both(stack, chosen.model, room, chosen.threads, chosen.interpreter, say)

            def runner(peer: str) -> Prompt:
                def run(prompt: list[int]) -> float:
                    return loaded[peer].answer(plain_task(prompt, 1), LIMIT).first_seconds

                return run

            engines = {peer: runner(peer) for peer in loaded}
            gate = IdleGate(chosen.patience, goes_on=chosen.busy)
            found = measure(engines, chosen.tokens, chosen.rounds, gate)
    except (MachineBusy, PeerFailed) as error:
        say(f"Not measured: {error}.")
        return 1
    text = msgspec.json.encode(found).decode() if chosen.json else f"{describe_machine()}\n\n{table(found).markdown()}"
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
