"""Divides a run's minutes among its parts, and keeps what each has spent, so that a killed run goes on.

Knows no heads. Invariant: a part's time depends on the parts before it and its share alone, whenever it is asked for,
so that it is the same after a kill.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from decoding.core.files.output import replace_file
from decoding.training.heads.run.device_limit import Clock, DeviceLimit

WRITE_SECONDS, TELL_SECONDS = 1.0, 10.0
Tell = Callable[[str], None]


@dataclass
class Spent:
    """Of a part: products and num_bytes as of `DeviceLimit`."""

    seconds: float = 0.0
    tokens: int = 0
    products: float = 0.0
    num_bytes: float = 0.0
    is_done: bool = False


class Parts:
    """path: of the file that keeps them. shares: of the parts in their order; a part without one has as much time as
    it takes. minutes: of all together; None bounds nothing."""

    def __init__(
        self, path: Path, shares: Mapping[str, float], minutes: float | None, limit: DeviceLimit, tell: Tell, now: Clock
    ) -> None:
        self._path, self._shares, self._minutes = path, dict(shares), minutes
        self.limit, self.tell, self.now = limit, tell, now
        kept = json.loads(path.read_text()) if path.is_file() else {}
        self.spent = {name: Spent(**each) for name, each in kept.items()}

    def is_done(self, name: str) -> bool:
        return name in self.spent and self.spent[name].is_done

    def seconds_for(self, name: str) -> float:
        """Of a part that is not done: its share of what those before it left."""
        if self._minutes is None or name not in self._shares:
            return math.inf
        open_shares = sum(share for each, share in self._shares.items() if not self.is_done(each))
        left = 60 * self._minutes - sum(each.seconds for each in self.spent.values() if each.is_done)
        return max(0.0, left * self._shares[name] / open_shares)

    def skip(self, name: str) -> None:
        """Leave its time to the others."""
        self.spent[name] = Spent(is_done=True)

    @contextmanager
    def part(self, name: str) -> Iterator[Part]:
        """Time what happens inside as that part, which is done when the block ends without an error."""
        part = Part(self, name, self.spent.setdefault(name, Spent()))
        yield part
        part.end()

    def write(self) -> None:
        with replace_file(self._path) as file:
            file.write(json.dumps({name: asdict(each) for name, each in self.spent.items()}, indent=2).encode())


class Part:
    """One part while it runs."""

    def __init__(self, parts: Parts, name: str, spent: Spent) -> None:
        self._parts, self._name, self.spent = parts, name, spent
        self._bound = parts.seconds_for(name)
        self._noted_at = self._written_at = self._told_at = parts.now()

    @property
    def left(self) -> float:
        """Seconds, without those since the last note."""
        return self._bound - self.spent.seconds

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def note(self, tokens: int, products: float = 0.0, num_bytes: float = 0.0, more: str = "") -> None:
        """Add work, and the time since the last note. more: what a line of progress says besides."""
        now, spent = self._parts.now(), self.spent
        spent.seconds += now - self._noted_at
        self._noted_at = now
        spent.tokens += tokens
        spent.products += products
        spent.num_bytes += num_bytes
        if now - self._written_at >= WRITE_SECONDS:
            self._parts.write()
            self._written_at = now
        if now - self._told_at >= TELL_SECONDS:
            self._parts.tell(self.line(more))
            self._told_at = now

    def end(self) -> None:
        """Mark it done."""
        self.note(0)
        self.spent.is_done = True
        self._parts.write()
        self._parts.tell(self.line("done"))

    def line(self, more: str) -> str:
        spent, limit = self.spent, self._parts.limit
        seconds = max(spent.seconds, 1e-9)
        share = limit.share(spent.products, spent.num_bytes, seconds)
        near = f", {share:.1%} of the device's limit" if share else ""
        of = "" if math.isinf(self._bound) else f" of {self._bound:.0f}"
        told = f"{spent.tokens:,} tokens in {spent.seconds:.0f}{of} s, {spent.tokens / seconds:,.0f} a second"
        return f"{self._name}: {told}{near}{'; ' if more else ''}{more}"
