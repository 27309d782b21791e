"""Measures what is gained when a session returns to its replica: `python -m deploy.measure_affinity --rounds 3`.

Starts Ray Serve with the bundled model, one thread a replica. Conversations of three turns run at once through one
replica, through two with sessions named in a header, and through two without, in turn. It prints, for each round,
tokens a second; and for turns after the first, which cannot gain, the share of prompt tokens that were cached and the
share of reply tokens that were accepted drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

import httpx

from deploy.conversation import Streamed, converse
from deploy.local_ray import SETTINGS, local_ray
from server.ray.config_file import RayOptions, config_of

TURNS = (96, 96, 96)  # tokens of each reply
WAYS = {
    "one replica": (1, True),
    "two, with `X-Session-Id`": (2, True),
    "two, without": (2, False),
}


@dataclass(frozen=True, slots=True)
class Round:
    """rate: tokens a second; cached: share of prompt tokens from the cache; foretold: share of reply tokens that were
    accepted drafts. Both shares are of turns after the first."""

    rate: float
    cached: float
    foretold: float


async def measured(url: str, sessions: int, is_named: bool) -> Round:
    """Run all conversations at once."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=sessions)) as client:
        started = time.perf_counter()
        conversations = await asyncio.gather(
            *(converse(client, number, uuid.uuid4().hex, TURNS, is_named) for number in range(sessions))
        )
        seconds = time.perf_counter() - started
    replies = [reply for conversation in conversations for reply in conversation]
    assert all(reply.end == "end" for reply in replies), [reply.end for reply in replies]
    return _round(replies, [reply for conversation in conversations for reply in conversation[1:]], seconds)


def _round(replies: list[Streamed], later: list[Streamed], seconds: float) -> Round:
    cached = sum(reply.cached for reply in later) / sum(reply.prompt for reply in later)
    foretold = sum(reply.accepted for reply in later) / sum(reply.tokens for reply in later)
    return Round(sum(reply.tokens for reply in replies) / seconds, cached, foretold)


def table(rounds: dict[str, list[Round]]) -> str:
    lines = ["| | tokens/s, each round | cached prompt tokens | tokens from the stores |", "|---|---|---|---|"]
    for way, found in rounds.items():
        rates = ", ".join(f"{each.rate:.0f}" for each in found)
        cached = ", ".join(f"{each.cached:.0%}" for each in found)
        foretold = ", ".join(f"{each.foretold:.0%}" for each in found)
        lines.append(f"| {way} | {rates} | {cached} | {foretold} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=12, help="at the same time")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    rounds: dict[str, list[Round]] = defaultdict(list)
    with local_ray() as ray:
        for _ in range(chosen.rounds):
            for way, (replicas, is_named) in WAYS.items():
                ray.deploy(config_of(RayOptions(replicas, replicas, 1, 0), SETTINGS))
                rounds[way].append(asyncio.run(measured(ray.url, chosen.sessions, is_named)))
    sys.stdout.write(table(rounds) + "\n")


if __name__ == "__main__":
    main()
