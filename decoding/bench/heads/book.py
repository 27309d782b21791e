"""Stores every measured figure with its contender and all that it depends on, so that none is measured twice.

Owns the raw figures on disk. Knows neither engines nor tables.
Invariant: a figure is found only under exactly the setting that it was measured in.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from decoding.bench.tables.figures import Figures


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All that a figure depends on besides the contender.

    target, prompts: digests. numbers: dtype, attention and device. way: how trees are drafted. machine: the machine and
    its number of threads; empty for counts, which do not depend on it.
    """

    target: str
    numbers: str
    workload: str
    temperature: float
    prompts: str
    num_prompts: int
    max_tokens: int
    way: str
    machine: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's figures on one workload. contender: its digest. none: plain decoding's figures in the same
    rounds, for speeds. run: when the rounds began. replies: a digest of all tokens; empty if they were compared with
    plain decoding's."""

    contender: str
    setting: Setting
    figures: Figures
    run: str
    none: Figures | None = None
    replies: str = ""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a contender besides its target's: parameters and bytes of its own weights, and cache bytes per
    token."""

    contender: str
    target: str
    numbers: str
    parameters: int
    weight_bytes: int
    slot_bytes: int


class Book(msgspec.Struct):
    """findings, sizes: in the order of measurement."""

    findings: list[Finding] = []
    sizes: list[Size] = []

    def find(self, contender: str, setting: Setting) -> Finding | None:
        wanted = (contender, setting)
        return next((each for each in self.findings if (each.contender, each.setting) == wanted), None)

    def size_of(self, contender: str, target: str, numbers: str) -> Size | None:
        wanted = (contender, target, numbers)
        return next((each for each in self.sizes if (each.contender, each.target, each.numbers) == wanted), None)

    def has_other_replies(self, finding: Finding) -> bool:
        """Whether another contender gave other tokens in the same setting."""
        return any(each.setting == finding.setting and each.replies != finding.replies for each in self.findings)


def read_book(path: Path, section: str) -> Book:
    """The book in one section of a report's raw figures; empty if there is none.

    Raises msgspec.ValidationError if the section is no book.
    """
    known = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    return msgspec.convert(known[section]["figures"], Book) if section in known else Book()
