"""What is done to a server's worker during a soak, how soon it serves again, and how its memory goes.

Owns no process: the worker is found by the process id that /health tells an admin.
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
STOPPED_SECONDS = 7.0  # longer than the silence after which a worker is not ready
PATIENCE = 240.0  # seconds until a worker is ready again


async def health_of(address: Address) -> dict[str, Any]:
    """The body of /health, empty where nobody answers."""
    pieces: list[bytes] = []
    try:
        await address.exchange("GET", "/health", b"", pieces.append)
    except OSError:
        return {}
    body: dict[str, Any] = json.loads(b"".join(pieces))
    return body


async def until(address: Address, holds: Callable[[dict[str, Any]], bool]) -> float:
    """Seconds until /health says so. Raises TimeoutError."""
    started = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        while not holds(await health_of(address)):
            await asyncio.sleep(POLL)
    return time.perf_counter() - started


@dataclass(slots=True)
class Chaos:
    """Kills and stops the worker by turns. admin: the server, with an admin's key. restarts: seconds from a kill to a
    worker that serves; silences: from a stop to a server that says so."""

    admin: Address
    moments: random.Random
    restarts: list[float] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)

    async def run(self, seconds: float, pause: float) -> None:
        """pause: seconds between two blows, on average."""
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
    """MiB of the worker's and the server's resident memory, each second: (seconds, MiB) by process id."""

    admin: Address
    samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            pid = (await health_of(self.admin)).get("worker_pid")
            if pid is not None and (resident := resident_mib(pid)) is not None:
                self.samples.setdefault(pid, []).append((time.perf_counter(), resident))
            await asyncio.sleep(1.0)

    @property
    def peak(self) -> float:
        return max((mib for samples in self.samples.values() for _, mib in samples), default=0.0)

    def slope(self, since: float) -> float | None:
        """MiB a minute of the last worker after `since`, by least squares; None for less than a minute of it."""
        last = [each for each in list(self.samples.values())[-1] if each[0] >= since] if self.samples else []
        if not last or last[-1][0] - last[0][0] < 60.0:
            return None
        seconds, mib = np.array(last).T
        return float(np.polyfit(seconds / 60.0, mib, 1)[0])


def resident_mib(pid: int) -> float | None:
    """None where there is no such process any more."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
