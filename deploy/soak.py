"""Stress-tests a server of its own on 127.0.0.1: `python -m deploy.soak --seconds 600 --clients 64`.

Clients of two keys ask for known replies, disconnect midway, and send invalid and malicious bodies, while the worker is
killed and stopped in turn; the last part of the time is without kills. Every request must end in exactly one way, every
reply must be the one it always is, no block may be left held, and memory may not keep growing in the last part.
Prints a table; the exit status is 1 if something failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from deploy.soaking.bodies import Ask, bombs, mistakes, replies
from deploy.soaking.chaos import Chaos, Memory, Samples, slope, until
from deploy.soaking.ends import FAULT, UNAVAILABLE, WHOLE, End, Reply, ask
from server.bench.connection import Address
from server.bench.started_servers import running_gander

KEYS = ("alice", "bob")
ADMIN = "admin"
FLAGS = ("--api-keys", ",".join(KEYS), "--admin-keys", ADMIN, "--trust-request-chat-template")
SMALL = ("--kv-slots", "40000", "--session-bytes", "1048576")  # small bounds, which are soon reached
STORMY = 0.5  # share of the time in which the worker is killed and stopped
MOST_GROWTH = 10.0  # MiB a minute, of the worker and of the server
SHARES = {"reply": 0.80, "leave": 0.10, "mistake": 0.08, "bomb": 0.02}
SHOWN_FAULTS = 10


def bodies_by_name() -> dict[str, list[Ask]]:
    known = replies()
    return {"reply": known, "leave": known, "mistake": mistakes(), "bomb": bombs()}


@dataclass(slots=True)
class Soak:
    """The soak of one server. bodies: requests by the names in SHARES; expected: each reply's text, by its body."""

    url: str
    bodies: dict[str, list[Ask]] = field(default_factory=bodies_by_name)
    expected: dict[bytes, str] = field(default_factory=dict)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)  # requests by their kind and how they ended
    faults: list[str] = field(default_factory=list)
    stormy_gaps: list[float] = field(default_factory=list)
    quiet_gaps: list[float] = field(default_factory=list)
    quiet_since: float = float("inf")

    async def learn(self) -> None:
        """Ask for every known reply once, while nothing disturbs the server."""
        for asked in self.bodies["reply"]:
            end, _ = await ask(self._address(KEYS[0]), asked)
            if end.kind != WHOLE:
                raise SystemExit(f"An undisturbed request ended as {end}.")
            self.expected[asked.body] = end.text

    async def client(self, number: int, until_time: float) -> None:
        """Send one request after the other until the time is over."""
        choices, address = random.Random(number), self._address(KEYS[number % len(KEYS)])
        while time.perf_counter() < until_time:
            (name,) = choices.choices(list(SHARES), list(SHARES.values()))
            asked = choices.choice(self.bodies[name])
            end, reply = await ask(address, asked, choices.uniform(0.01, 1.0) if name == "leave" else None)
            self._note(name, asked, end, reply)
            if end.kind == UNAVAILABLE:
                await asyncio.sleep(choices.uniform(0.2, 1.0))

    def _note(self, name: str, asked: Ask, end: End, reply: Reply) -> None:
        if end.kind == WHOLE and end.text != self.expected.get(asked.body, end.text):
            end = End(FAULT, sentence=f"another text than always: {end.text!r}")
        self.ends[name, end.kind] += 1
        if end.kind == FAULT:
            self.faults.append(f"{name} {asked.path} {asked.body[:120]!r}: {end.sentence}")
        elif end.kind == WHOLE and name == "reply" and reply.times:
            is_quiet = reply.times[0] >= self.quiet_since
            (self.quiet_gaps if is_quiet else self.stormy_gaps).extend(reply.gaps)

    async def run(self, seconds: float, num_clients: int, pause: float) -> bool:
        """Run the soak. Returns whether nothing failed. pause: mean seconds between two kills or stops."""
        await self.learn()
        admin = self._address(ADMIN)
        chaos, memory = Chaos(admin, random.Random(16)), Memory(admin)
        watching = asyncio.create_task(memory.watch())
        started = time.perf_counter()
        clients = [asyncio.create_task(self.client(number, started + seconds)) for number in range(num_clients)]
        await chaos.run(STORMY * seconds, pause)
        self.quiet_since = time.perf_counter()
        await asyncio.gather(*clients)
        await until(admin, lambda health: health.get("status") == "ready" and health["open_requests"] == 0)
        watching.cancel()
        held = await self._held_slots()
        self._report(chaos, memory, held)
        growths = [slope(samples) for samples in memory.since(self.quiet_since).values()]
        return not self.faults and held == 0 and all(each is None or each[0] < MOST_GROWTH for each in growths)

    def _report(self, chaos: Chaos, memory: Memory, held: int) -> None:
        quiet = memory.since(self.quiet_since)
        kinds = Counter[str]()
        for (_, kind), count in self.ends.items():
            kinds[kind] += count
        rows = [
            (
                "requests",
                f"{kinds.total()}, each with one end: " + ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())),
            ),
            ("faults", str(len(self.faults))),
            ("slots left held", str(held)),
            ("worker killed, seconds until it serves again", _listed(chaos.restarts)),
            ("worker stopped, seconds until /ready says so", _listed(chaos.silences)),
            ("time between tokens, ms p50 / p99, with blows", _quantiles(self.stormy_gaps)),
            ("time between tokens, ms p50 / p99, quiet", _quantiles(self.quiet_gaps)),
            ("resident MiB of a worker at most", f"{memory.peak:.0f}"),
            *((f"resident MiB of the {name}, quiet", _course(samples)) for name, samples in quiet.items()),
        ]
        sys.stdout.write("| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows))
        for fault in self.faults[:SHOWN_FAULTS]:
            sys.stdout.write(f"FAULT: {fault}\n")

    async def _held_slots(self) -> int:
        """The slots that requests hold, after the worker has had time to report them."""
        held = -1
        for _ in range(40):
            pieces: list[bytes] = []
            await self._address(ADMIN).exchange("GET", "/metrics", b"", pieces.append)
            lines = b"".join(pieces).decode().splitlines()
            held = sum(int(float(line.split()[-1])) for line in lines if line.startswith("gander_slots_used"))
            if held == 0:
                break
            await asyncio.sleep(0.25)
        return held

    def _address(self, key: str) -> Address:
        return Address.of(self.url, key)


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds) or "none"


def _quantiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    middle, most = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return f"{middle:.0f} / {most:.0f}"


def _course(samples: Samples) -> str:
    """A line that tells how memory changed."""
    growth = slope(samples)
    if growth is None:
        return "too short to tell"
    return f"{samples[0][1]:.0f} to {samples[-1][1]:.0f}, {growth[0]:+.1f} a minute in the last {growth[1]:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between two blows, on average")
    chosen, flags = parser.parse_known_args(arguments)
    with running_gander([*FLAGS, *SMALL, *flags]) as url:
        went_well = asyncio.run(Soak(url).run(chosen.seconds, chosen.clients, chosen.pause))
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
