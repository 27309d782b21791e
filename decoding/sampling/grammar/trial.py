"""Finds out whether a grammar compiles within the limits, by compiling it in a separate process, which may die.

Owns that process, which starts with the first grammar and restarts after its death. llguidance cannot serialise a
compiled grammar, so a grammar that passes is compiled again here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import weakref

import msgspec

from decoding.core.grammar import Grammar
from decoding.sampling.grammar.source import TokenizerFile, rejected

MAX_REASON = 1000  # characters: some of llguidance's messages quote the grammar


class TrialLimits(msgspec.Struct, frozen=True):
    """The limits of one trial. seconds: of processor time, so that a busy machine does not fail it. num_bytes: in
    addition to the memory that the process starts with."""

    seconds: float = 2.0
    num_bytes: int = 64 * 2**20


class Outcome(msgspec.Struct, frozen=True):
    """refusal: why the grammar is refused, a message for its caller. num_bytes: its memory, if it is not refused."""

    refusal: str | None = None
    num_bytes: int = 0


class TrialProcess:
    """Tries one grammar at a time; calls block. tokenizer: the one that the grammars are for."""

    def __init__(self, tokenizer: TokenizerFile, limits: TrialLimits) -> None:
        self._arguments = [msgspec.json.encode(each).decode() for each in (tokenizer, limits)]
        self._process: subprocess.Popen[bytes] | None = None

    def cost_of(self, grammar: Grammar) -> int:
        """The bytes that the compiled grammar takes. Raises RequestRejected if the grammar is refused, and
        ChildProcessError if the process itself has ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # handled below, where the answer is empty
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise ChildProcessError(f"the process that tries grammars ended with status {process.wait()}")
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.refusal is not None:
            raise rejected(outcome.refusal[:MAX_REASON])
        return outcome.num_bytes

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "decoding.sampling.grammar", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
