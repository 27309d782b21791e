"""Reads the machine code of compiled Triton kernels, by the disassembler in Triton's wheel.

Knows of it only what the tests ask: loops, and which instruction an operand comes from.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from typing import NamedTuple

import triton

LABEL = re.compile(r"(\.L_x_\d+):")
JUMP = re.compile(r"BRA `\((\.L_x_\d+)\)")
INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_.]+)\s+(.*?);")
EXPONENTIAL = "MUFU.EX2"


class Instruction(NamedTuple):
    """operands: as written, the result first."""

    name: str
    operands: list[str]


def disassembled(cubin: bytes) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def feeds_of_exponentials(cubin: bytes) -> list[Counter[str]]:
    """For each loop that holds exponentials and no other loop, in order: how many are fed by which instructions."""
    lines = disassembled(cubin)
    loops = _loops(lines)
    inner = [
        one for one in loops if not any(one != other and one[0] <= other[0] and other[1] <= one[1] for other in loops)
    ]
    found = [_feeds([each for each in map(_instruction, lines[begin:end]) if each]) for begin, end in inner]
    return [feeds for feeds in found if feeds]


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """The first line and the end of what each jump back goes over."""
    places: dict[str, int] = {}
    loops = []
    for place, line in enumerate(lines):
        if label := LABEL.match(line):
            places[label[1]] = place
        if (jump := JUMP.search(line)) and jump[1] in places:
            loops.append((places[jump[1]], place + 1))
    return loops


def _instruction(line: str) -> Instruction | None:
    found = INSTRUCTION.search(line)
    return Instruction(found[1], [each.strip() for each in found[2].split(",")]) if found else None


def _feeds(code: list[Instruction]) -> Counter[str]:
    feeds: Counter[str] = Counter()
    for place, each in enumerate(code):
        if each.name == EXPONENTIAL:
            register = each.operands[1].strip("-|").partition(".")[0]
            writers = (other.name for other in reversed(code[:place]) if other.operands[0] == register)
            feeds[next(writers, "another part")] += 1
    return feeds
