"""Finds out whether a grammar compiles within the limits, by compiling it in a separate process, which may die.

Owns that process, which starts with the first grammar and restarts after its death. llguidance cannot serialise a
compiled grammar, so a grammar that passes is compiled again here.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import weakref
from collections.abc import Sequence

import msgspec

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.source import TokenizerFile, rejected

COMMAND = (sys.executable, "-m", "decoding.sampling.grammar")
MAX_REASON = 1000  # characters: some of llguidance's messages quote the grammar
MAX_TRIALS = 2  # of a grammar whose process the system ends
UNAVAILABLE = "grammar_unavailable"  # code of a refusal that is the system's fault

logger = logging.getLogger("gander.grammar")


class TrialLimits(msgspec.Struct, frozen=True):
    """The limits of one trial. seconds: of processor time, so that a busy machine does not fail it. num_bytes: in
    addition to the memory that the process starts with."""

    seconds: float = 2.0
    num_bytes: int = 64 * 2**20


class Outcome(msgspec.Struct, frozen=True):
    """refusal: why the grammar is refused, a message for its caller. num_bytes: its memory, if it is not refused.
    was_ended: the system ended the process before either was known."""

    refusal: str | None = None
    num_bytes: int = 0
    was_ended: bool = False


class TrialProcess:
    """Tries one grammar at a time; calls block. tokenizer: the one that the grammars are for."""

    def __init__(self, tokenizer: TokenizerFile, limits: TrialLimits, command: Sequence[str] = COMMAND) -> None:
        self._command = [*command, *(msgspec.json.encode(each).decode() for each in (tokenizer, limits))]
        self._process: subprocess.Popen[bytes] | None = None

    def cost_of(self, grammar: Grammar) -> int:
        """The bytes that the compiled grammar takes. Raises RequestRejected if the grammar is refused, and with the
        code UNAVAILABLE if the system ends each trial of it, which says nothing of the grammar."""
        for _ in range(MAX_TRIALS):
            outcome = self._try_out(grammar)
            if outcome.refusal is not None:
                raise rejected(outcome.refusal[:MAX_REASON])
            if not outcome.was_ended:
                return outcome.num_bytes
        message = f"the system ended the process that compiles grammars {MAX_TRIALS} times; try again later"
        raise RequestRejected(message, "grammar", UNAVAILABLE)

    def _try_out(self, grammar: Grammar) -> Outcome:
        try:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:  # the system has no process for us, or has ended it
            logger.warning("A grammar cannot be tried out: %s.", error)
            line = b""
        if line:
            return msgspec.json.decode(line, type=Outcome)
        if self._process is not None:
            _end(self._process)
            logger.warning("The process that tries out grammars ended with status %d.", self._process.returncode)
            self._process = None
        return Outcome(was_ended=True)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
