"""Every figure that was measured, by who drafted and all that the figure depends on, so that none is measured twice.

Owns the raw figures on disk. Knows neither engines nor tables.
Invariant: a figure is found again under the very setting that it was measured in, and no other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from decoding.bench.tables.figures import Figures


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on beside the contender.

    target, prompts: digests; numbers: the dtype, attention and device; way: how trees are drafted; machine: what and
    how many threads it was measured on, empty for counts, which do not depend on it.
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
    """One contender's figures on one workload. contender: its digest; none: plain decoding's figures in the same
    rounds, where seconds count; run: when the rounds were begun; replies: a digest of all tokens, empty where they
    were compared with plain decoding's."""

    contender: str
    setting: Setting
    figures: Figures
    run: str
    none: Figures | None = None
    replies: str = ""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender takes beside its target: parameters and bytes of its own weights, and bytes for each token of
    room."""

    contender: str
    target: str
    numbers: str
    parameters: int
    weight_bytes: int
    slot_bytes: int


class Book(msgspec.Struct):
    """findings, sizes: in the order in which they were measured."""

    findings: list[Finding] = []
    sizes: list[Size] = []

    def find(self, contender: str, setting: Setting) -> Finding | None:
        wanted = (contender, setting)
        return next((each for each in self.findings if (each.contender, each.setting) == wanted), None)

    def size_of(self, contender: str, target: str, numbers: str) -> Size | None:
        wanted = (contender, target, numbers)
        return next((each for each in self.sizes if (each.contender, each.target, each.numbers) == wanted), None)

    def has_other_replies(self, finding: Finding) -> bool:
        """Whether another contender's replies in the same setting were other tokens."""
        return any(each.setting == finding.setting and each.replies != finding.replies for each in self.findings)


def read_book(path: Path, section: str) -> Book:
    """The book in one section of a report's raw figures, empty where there is none.

    Raises msgspec.ValidationError where what is there is no book.
    """
    known = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    return msgspec.convert(known[section]["figures"], Book) if section in known else Book()
