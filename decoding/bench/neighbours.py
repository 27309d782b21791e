"""Plain decoding beside busy processes: `gander bench neighbours MODEL`.

Starts the busy processes itself and ends them, and nothing else. In each round every engine is measured alone, then
beside each number of neighbours; after each it is asked for short replies until it has its quiet rate again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from statistics import median

import msgspec
from rich.console import Console

from decoding.bench.machine import describe_machine
from decoding.bench.options import floats, names, positive
from decoding.bench.peers.gate import IdleGate, MachineBusy
from decoding.bench.peers.loaded import load_both, plain_task, random_prompt
from decoding.bench.peers.peer_process import PeerAnswer, PeerFailed, PeerProcess
from decoding.bench.peers.rounds import OURS
from decoding.bench.tables.table import UNKNOWN, Table

PROMPT_LEN, REPLY_LEN, SHORT_LEN = 16, 32, 8  # tokens; a short reply's speed tells whether the full rate is back
FULL = 0.9  # of the quiet rate is the full rate
PATIENCE = 30.0  # seconds of waiting for it
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"  # ends with us

Ask = Callable[[int], PeerAnswer]  # for a reply of so many tokens
Clock = Callable[[], float]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one engine beside `busy` processes, one for each round. rates: tokens a second. shares: of the same
    round's rate alone. back: seconds until the full rate was back, None where it was not within `PATIENCE`."""

    peer: str
    busy: int
    rates: list[float] = []
    shares: list[float] = []
    back: list[float | None] = []


def rate(answers: Sequence[PeerAnswer]) -> float:
    """Tokens after the first, over the seconds after it."""
    num_tokens = sum(len(answer.tokens) - 1 for answer in answers)
    return num_tokens / sum(answer.seconds - answer.first_seconds for answer in answers)


def rate_over(ask: Ask, seconds: float, clock: Clock = time.monotonic) -> float:
    """Of the replies that begin within so many seconds."""
    answers, end = [ask(REPLY_LEN)], clock() + seconds
    while clock() < end:
        answers.append(ask(REPLY_LEN))
    return rate(answers)


def seconds_until(full: float, ask: Ask, clock: Clock = time.monotonic) -> float | None:
    """Until the first of the short replies that come at `full` tokens a second or more begins; None where none does."""
    start = began = clock()
    while began - start < PATIENCE:
        if rate([ask(SHORT_LEN)]) >= full:
            return began - start
        began = clock()
    return None


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy, with the priority of ours."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


class Measurement:
    """asks: the engines by name. busy: numbers of neighbours, ascending, without 0."""

    def __init__(self, asks: dict[str, Ask], busy: Sequence[int], seconds: float, gate: IdleGate) -> None:
        self._asks, self._busy, self._seconds, self._gate = asks, busy, seconds, gate
        self.found = {(peer, count): Beside(peer=peer, busy=count) for peer in asks for count in (0, *busy)}

    def round(self, number: int) -> None:
        """Raises MachineBusy from the gate, and PeerFailed."""
        order = list(self._asks)
        Random(number).shuffle(order)
        for peer in order:
            ask = self._asks[peer]
            ask(REPLY_LEN)
            self._gate.wait()
            quiet = rate_over(ask, self._seconds)
            self._note(peer, 0, quiet, quiet, None)
            for count in self._busy:
                with neighbours(count):
                    found = rate_over(ask, self._seconds)
                self._note(peer, count, found, quiet, seconds_until(FULL * quiet, ask))

    def _note(self, peer: str, count: int, found: float, quiet: float, back: float | None) -> None:
        figures = self.found[peer, count]
        figures.rates.append(found)
        if count:
            figures.shares.append(found / quiet)
            figures.back.append(back)


def table(found: Sequence[Beside]) -> Table:
    head = ("engine", "busy processes", "tokens/s", "of its quiet rate", "full rate back after, s")
    return Table(head, [(each.peer, str(each.busy), f"{median(each.rates):.1f}", *_cells(each)) for each in found])


def _cells(figures: Beside) -> tuple[str, str]:
    if not figures.busy:
        return UNKNOWN, UNKNOWN
    back = median(PATIENCE if each is None else each for each in figures.back)
    shown = f"{back:.1f}" if back < PATIENCE else f"> {PATIENCE:g}"
    return f"{median(figures.shares):.2f}", f"{shown} (at most {_longest(figures)})"


def _longest(figures: Beside) -> str:
    return f"> {PATIENCE:g}" if None in figures.back else f"{max(each or 0.0 for each in figures.back):.1f}"


def missed(found: Sequence[Beside], least: dict[int, float], latest: float | None) -> list[str]:
    """A sentence for each thing that our engine was to reach and did not. least: shares of the quiet rate by the number
    of neighbours. latest: the most seconds until the full rate is back, in the median."""
    sentences = []
    for each in (each for each in found if each.peer == OURS and each.busy):
        share, back = median(each.shares), median(PATIENCE if one is None else one for one in each.back)
        if share < least.get(each.busy, 0.0):
            sentences.append(f"beside {each.busy}: {share:.2f} of the quiet rate, not {least[each.busy]:g}")
        if latest is not None and back > latest:
            sentences.append(f"beside {each.busy}: the full rate was back after {back:.1f} s, not {latest:g}")
    return sentences


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench neighbours", description=__doc__)
    add = parser.add_argument
    add("model", help="a GGUF file, which llama.cpp loads too; or a folder, or a hub name")
    add("--busy", type=names, default=("1", "2"), help="numbers of busy processes, apart by commas")
    add("--seconds", type=float, default=10.0, help="of replies to measure alone, and beside each number")
    add("--rounds", type=positive, default=3)
    add("--threads", type=positive, help="of everybody; by default ours chooses, and others use all usable cores")
    add("--interpreter", default=sys.executable, metavar="PYTHON", help="one that has llama-cpp-python")
    add("--patience", type=float, default=60.0, help="seconds of waiting for idle moments before rounds, in all")
    add("--anyway", action="store_true", help="go on when no idle moment has come, instead of ending")
    add("--least", type=floats, default=(), help="shares of the quiet rate beside each number, for status 0")
    add("--latest", type=float, help="seconds until the full rate is back, for status 0")
    add("--json", action="store_true", help="print all rounds' figures as JSON instead of a table")
    chosen = parser.parse_args(argv)
    if not chosen.busy or not all(each.isdecimal() and int(each) > 0 for each in chosen.busy):
        parser.error(f"--busy is positive numbers apart by commas, not {','.join(chosen.busy)!r}")
    if len(chosen.least) > len(chosen.busy):
        parser.error(f"--least has {len(chosen.least)} shares for {len(chosen.busy)} numbers of --busy")
    chosen.busy = [int(each) for each in chosen.busy]
    return chosen


def _ask_of(process: PeerProcess) -> Ask:
    rng = Random(0)

    def ask(num_tokens: int) -> PeerAnswer:
        return process.answer(plain_task(random_prompt(rng, PROMPT_LEN), num_tokens))

    return ask


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    chosen, console = _parse(argv), Console(stderr=True)

    def say(sentence: str) -> None:
        console.print(sentence, soft_wrap=True, markup=False)

    try:
        with ExitStack() as stack:
            max_len = PROMPT_LEN + 2 * REPLY_LEN
            loaded = load_both(stack, chosen.model, max_len, chosen.threads, chosen.interpreter, say)
            asks = {peer: _ask_of(process) for peer, process in loaded.items()}
            measurement = Measurement(asks, chosen.busy, chosen.seconds, IdleGate(chosen.patience, chosen.anyway))
            for number in range(chosen.rounds):
                measurement.round(number)
    except (MachineBusy, PeerFailed) as error:
        say(f"Not measured: {error}.")
        return 1
    found = list(measurement.found.values())
    text = msgspec.json.encode(found).decode() if chosen.json else f"{describe_machine()}\n\n{table(found).markdown()}"
    sys.stdout.write(f"{text}\n")
    sentences = missed(found, dict(zip(chosen.busy, chosen.least, strict=False)), chosen.latest)
    for sentence in sentences:
        say(sentence)
    return int(bool(sentences))


if __name__ == "__main__":
    sys.exit(main())
