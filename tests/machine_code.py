"""Reads the machine code of compiled Triton kernels, by the disassembler in Triton's wheel.

Knows of it only what the tests ask: loops, which instruction an operand comes from, and how keys are read.
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
INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Za-z0-9_.]+)\s+(.*?);")
EXPONENTIAL = "MUFU.EX2"
COPY, WAIT, SPILLS = "LDGSTS", "DEPBAR.LE", ("STL", "LDL")  # from memory to shared memory, for copies; to the stack


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


class Loop(NamedTuple):
    """feeds: which instructions exponentials are fed by, and how many. products: what multiplies matrices. copies: what
    copies into shared memory while others run. waits: how many groups of copies may still be on their way when it waits
    for one. num_spills: accesses to the stack."""

    feeds: dict[str, int]
    products: list[str]
    copies: dict[str, int]
    waits: list[int]
    num_spills: int


def loops_of(cubin: bytes) -> list[Loop]:
    """Those that hold exponentials and no other loop that does, in order."""
    lines = disassembled(cubin)
    found = {
        (begin, end): _loop([each for each in map(_instruction, lines[begin:end]) if each])
        for begin, end in _loops(lines)
    }
    loops = {place: loop for place, loop in found.items() if loop.feeds}
    return [
        loop
        for place, loop in loops.items()
        if not any(place != other and place[0] <= other[0] and other[1] <= place[1] for other in loops)
    ]


def _loop(code: list[Instruction]) -> Loop:
    return Loop(
        dict(_feeds(code)),
        sorted({each.name for each in code if "MMA" in each.name}),
        dict(Counter(each.name for each in code if each.name.startswith(COPY))),
        [int(each.operands[-1], 16) for each in code if each.name == WAIT and each.operands[0] == "SB0"],
        sum(each.name.startswith(SPILLS) for each in code),
    )


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """The first line and the end of what each jump back goes over, but for those from behind the program's end, where
    it waits."""
    last = max(place for place, line in enumerate(lines) if "EXIT" in line)
    places: dict[str, int] = {}
    loops = []
    for place, line in enumerate(lines[:last]):
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
