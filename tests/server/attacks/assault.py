"""Attacks a server while streams run beside, and tells what each attack did to others.

    python -m tests.server.attacks.assault URL

prints a table for a server on this machine, which has to take its callers for admins. It kills the server's worker.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from tests.server.attacks.attacks import BY_CLIENTS, ON_PROCESSES, Attack
from tests.server.attacks.target import Target
from tests.server.attacks.watch import ReadyWatch

NUM_STREAMS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attack. longest: the most seconds that an answer of /ready took while it lasted; statuses: of its
    requests, 0 where a connection ended without one; num_streams: replies beside it; num_wrong: those of them that were
    not what they are alone."""

    name: str
    longest: float
    statuses: Counter[int]
    num_streams: int
    num_wrong: int

    @property
    def is_withstood(self) -> bool:
        return self.num_wrong == 0 and not any(500 <= status != 503 for status in self.statuses)


def assaults(target: Target, attacks: Sequence[Attack] = (*BY_CLIENTS, *ON_PROCESSES)) -> Iterator[Outcome]:
    """Each attack in turn. It begins once streams run, and they go on until it has ended."""
    expected = [target.reply(seed) for seed in range(NUM_STREAMS)]
    for attack in attacks:
        ended, begun = threading.Event(), threading.Barrier(NUM_STREAMS + 1)
        told: list[tuple[int, str]] = []

        def stream(seed: int, ended: threading.Event, begun: threading.Barrier, told: list[tuple[int, str]]) -> None:
            with closing(Target(target.url)) as beside:
                begun.wait()
                while not ended.is_set():
                    told.append((seed, beside.reply(seed)))

        threads = [threading.Thread(target=stream, args=(seed, ended, begun, told)) for seed in range(NUM_STREAMS)]
        for thread in threads:
            thread.start()
        begun.wait()
        try:
            with ReadyWatch(target.host, target.port) as watch, closing(Target(target.url)) as attacker:
                statuses = Counter(attack(attacker))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        num_wrong = sum(text != expected[seed] for seed, text in told)
        yield Outcome(attack.__name__.replace("_", " "), watch.longest, statuses, len(told), num_wrong)


def main() -> None:
    say = sys.stdout.write
    say("| attack | longest /ready, ms | statuses | streams beside it | not their solo reply |\n")
    say("| --- | --: | --- | --: | --: |\n")
    for outcome in assaults(Target(sys.argv[1])):
        statuses = ", ".join(f"{count} × {status or 'closed'}" for status, count in sorted(outcome.statuses.items()))
        longest = f"{outcome.longest * 1e3:.0f}"
        say(f"| {outcome.name} | {longest} | {statuses} | {outcome.num_streams} | {outcome.num_wrong} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
