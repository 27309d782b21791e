"""Whether a grammar can be afforded, found out by compiling it in another process, which may fail as it likes.

Owns that process, which starts with the first grammar, and again after its death. A compiled grammar cannot leave the
process it was made in, llguidance has no form for that: so the one here is made again, known to end in time and room.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import weakref

import msgspec

from decoding.core.grammar import Grammar
from decoding.sampling.grammar.source import TokenizerFile, rejected

MAX_REASON = 1000  # characters: some of llguidance's quote the grammar


class TrialLimits(msgspec.Struct, frozen=True):
    """Of one trial. seconds: of processor time, so that a busy machine is no fault; num_bytes: beyond what the process
    begins with."""

    seconds: float = 2.0
    num_bytes: int = 64 * 2**20


class Outcome(msgspec.Struct, frozen=True):
    """refusal: why the grammar cannot be had, in words for its caller; num_bytes: what it takes, once it can."""

    refusal: str | None = None
    num_bytes: int = 0


class TrialProcess:
    """tokenizer: that the grammars are for. One grammar at a time; whoever asks waits."""

    def __init__(self, tokenizer: TokenizerFile, limits: TrialLimits) -> None:
        self._arguments = [msgspec.json.encode(each).decode() for each in (tokenizer, limits)]
        self._process: subprocess.Popen[bytes] | None = None

    def cost_of(self, grammar: Grammar) -> int:
        """Bytes that it takes, compiled. Raises RequestRejected for a grammar that cannot be had, and ChildProcessError
        where the process itself has ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # read on: the answer will be empty
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
