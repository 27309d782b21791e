"""Runs one peer in its own process.

Owns the process and talks to `children/child.py` in it. Knows nothing of the peer itself.
Invariant: whatever a peer does, a task is answered or PeerFailed is raised, in bounded time.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self, TypeVar

import msgspec

CHILD = Path(__file__).parent / "children" / "child.py"
LOAD_LIMIT = 900.0  # seconds, conversion included
ANSWER_LIMIT = 300.0


class PeerFailed(Exception):
    """A peer that cannot be measured, and why."""


class PeerMissing(PeerFailed):
    """A peer that is not installed in its interpreter."""


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """model, draft_model: Hugging Face folders, or GGUF files where the dtype is "gguf". dtype: float32, bfloat16,
    int8, or "gguf", which is as the file has its weights. threads: None lets ours choose. max_len: tokens of prompt and
    reply. cache: a folder for converted models."""

    model: str
    draft_model: str | None
    dtype: str
    threads: int | None
    max_len: int
    cache: str


class PeerTask(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to answer greedily, with `max_tokens` tokens or up to and including the first end token."""

    prompt: list[int]
    max_tokens: int
    end_tokens: list[int]
    drafting: str


class WindowTask(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a text to be scored, each given those before it; the first is not scored."""

    window: list[int]


class WindowScore(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of minus the natural logarithms of the scored tokens' probabilities."""

    nats: float


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's first message after loading: its version, and the names of its ways of drafting, "plain" first."""

    version: str
    draftings: list[str]


class PeerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One timed reply. first_seconds: the part of `seconds` up to the first token. cpu_seconds: of the whole process.
    phase_seconds: sums over `steps`, if the peer reports phases."""

    tokens: list[int]
    seconds: float
    first_seconds: float
    cpu_seconds: float
    phase_seconds: dict[str, float] = {}
    steps: int = 0


class _Failure(msgspec.Struct):
    missing: str | None = None
    error: str | None = None


_Said = TypeVar("_Said", Hello, PeerAnswer, WindowScore)


class PeerProcess:
    """A running peer, for use in a `with` statement. Raises PeerMissing or PeerFailed."""

    def __init__(self, adapter: Path, interpreter: str, options: PeerOptions, load_limit: float = LOAD_LIMIT) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [interpreter, str(CHILD), str(adapter)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        except OSError as error:
            self._stderr.close()
            raise PeerMissing(f"{interpreter} cannot be started: {error.strerror}") from error
        self._unread = b""
        try:
            self.hello = self._ask(options, Hello, load_limit)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def answer(self, task: PeerTask, limit: float = ANSWER_LIMIT) -> PeerAnswer:
        return self._ask(task, PeerAnswer, limit)

    def nats(self, window: list[int], limit: float = ANSWER_LIMIT) -> float:
        return self._ask(WindowTask(window=window), WindowScore, limit).nats

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._stderr.close()

    def _ask(self, question: PeerOptions | PeerTask | WindowTask, kind: type[_Said], limit: float) -> _Said:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(question) + b"\n")
        except BrokenPipeError:
            raise PeerFailed(self._last_words()) from None
        line = self._read_line(limit)
        failure = msgspec.json.decode(line, type=_Failure)
        if failure.missing is not None:
            raise PeerMissing(failure.missing)
        if failure.error is not None:
            raise PeerFailed(failure.error)
        return msgspec.json.decode(line, type=kind)

    def _read_line(self, limit: float) -> bytes:
        stdout, deadline = self._process.stdout, time.monotonic() + limit
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(deadline - time.monotonic()):
                    self._process.kill()  # otherwise a late answer would be taken for the next task's
                    raise PeerFailed(f"it did not answer within {limit:g} s")
                found = os.read(stdout.fileno(), 1 << 16)
                if not found:
                    raise PeerFailed(self._last_words())
                self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        status = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")
