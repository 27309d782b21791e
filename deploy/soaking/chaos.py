"""Kills and stops a server's worker during a soak, and measures how soon it serves again and how its memory grows.

Owns no process: /health tells an admin the worker's process id.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from server.bench.connection import Address

POLL = 0.05  # seconds
STOPPED_SECONDS = 7.0  # longer than the silence after which the server calls a worker silent
PATIENCE = 240.0  # seconds within which a worker must be ready again
SETTLING = 60.0  # seconds in which bounded memory fills up: sessions, grammars, the cache's first pages
SHORTEST = 60.0  # seconds of samples that a slope needs

Samples = list[tuple[float, float]]  # seconds of `time.perf_counter`, and MiB


async def health_of(address: Address) -> dict[str, Any]:
    """The body of /health; empty where the server does not answer."""
    pieces: list[bytes] = []
    try:
        await address.exchange("GET", "/health", b"", pieces.append)
    except OSError:
        return {}
    body: dict[str, Any] = json.loads(b"".join(pieces))
    return body


async def until(address: Address, holds: Callable[[dict[str, Any]], bool]) -> float:
    """Wait until /health satisfies a condition. Returns the seconds that took. Raises TimeoutError."""
    started = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        while not holds(await health_of(address)):
            await asyncio.sleep(POLL)
    return time.perf_counter() - started


@dataclass(slots=True)
class Chaos:
    """Kills and stops the worker in turn. admin: a client with an admin's key. restarts: seconds from each kill until a
    worker serves again; silences: seconds from each stop until the server reports it."""

    admin: Address
    moments: random.Random
    restarts: list[float] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)

    async def run(self, seconds: float, pause: float) -> None:
        """Kill and stop the worker for so many seconds. pause: mean seconds between two of these."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await asyncio.sleep(pause * self.moments.uniform(0.5, 1.5))
            pid = (await health_of(self.admin)).get("worker_pid")
            if pid is None:
                continue
            if len(self.restarts) <= 2 * len(self.silences):
                await self._kill(pid)
            else:
                await self._stop(pid)

    async def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        serves = await until(self.admin, lambda health: health.get("status") == "ready" and health["worker_pid"] != pid)
        self.restarts.append(serves)

    async def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            self.silences.append(await until(self.admin, lambda health: health.get("status") == "silent"))
            await asyncio.sleep(max(0.0, STOPPED_SECONDS - self.silences[-1]))
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(self.admin, lambda health: health.get("status") == "ready")


@dataclass(slots=True)
class Memory:
    """Samples resident memory each second: of every worker, by its process id, and of the server, their parent."""

    admin: Address
    workers: dict[int, Samples] = field(default_factory=dict)
    server: Samples = field(default_factory=list)

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            pid = (await health_of(self.admin)).get("worker_pid")
            if pid is not None and (parent := parent_of(pid)) is not None:
                self._note(self.workers.setdefault(pid, []), pid)
                self._note(self.server, parent)
            await asyncio.sleep(1.0)

    @property
    def peak(self) -> float:
        return max((mib for samples in self.workers.values() for _, mib in samples), default=0.0)

    def since(self, moment: float) -> dict[str, Samples]:
        """The samples of the last worker and of the server, by these names."""
        both = {"worker": next(reversed(self.workers.values()), []), "server": self.server}
        return {name: [each for each in samples if each[0] >= moment] for name, samples in both.items()}

    @staticmethod
    def _note(samples: Samples, pid: int) -> None:
        if (mib := resident_mib(pid)) is not None:
            samples.append((time.perf_counter(), mib))


def slope(samples: Samples) -> tuple[float, float] | None:
    """The growth in MiB a minute, by least squares without the first SETTLING seconds, and over how many minutes; None
    where these are too few."""
    settled = [each for each in samples if each[0] >= samples[0][0] + SETTLING]
    if not settled or settled[-1][0] - settled[0][0] < SHORTEST:
        return None
    minutes, mib = np.array(settled).T / np.array([[60.0], [1.0]])
    return float(np.polyfit(minutes, mib, 1)[0]), float(minutes[-1] - minutes[0])


def parent_of(pid: int) -> int | None:
    """None where there is no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def resident_mib(pid: int) -> float | None:
    """None where there is no such process any more."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
