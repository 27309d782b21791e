"""Compiles each grammar once, in one thread beside the engine's steps, and caches it.

Owns the thread and the cache. Knows nothing of how a grammar is compiled.
Invariant: every future ends with a grammar, or with a RequestRejected as its value: an exception that is cached and
raised repeatedly would collect the frames of everyone who raised it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.matcher import CompiledGrammar
from decoding.sampling.grammar.trial import UNAVAILABLE

KEPT_BYTES = 256 * 2**20  # of compiled grammars and their texts
ENTRY_BYTES = 1024  # overhead of each entry
NOT_COMPILED = "grammar_not_compiled"  # code of a refusal for which the grammar may not be at fault

logger = logging.getLogger("gander.grammar")

Compiling = Future[CompiledGrammar | RequestRejected]


class GrammarCompiler:
    """build: compiles one grammar; called in the thread. kept_bytes: the size of the cache."""

    def __init__(self, build: Callable[[Grammar], CompiledGrammar], kept_bytes: int = KEPT_BYTES) -> None:
        self._build = build
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Grammar, Compiling] = OrderedDict()  # least recently requested first
        self._unfinished: deque[Grammar] = deque()  # of these, when they were last looked at, in order
        self._sizes: dict[Grammar, int] = {}  # of the others
        self._num_bytes = 0  # their sum
        self._waiting: SimpleQueue[tuple[Grammar, Compiling]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def compile(self, grammar: Grammar) -> Compiling:
        """Return a future at once. Callers share it, so none may cancel it.

        Grammars and refusals are cached; a grammar that broke the compiler or a reply is compiled again.
        """
        future = self._kept.get(grammar)
        if future is None or not _is_of_use(future):
            future = self._begin(grammar)
            self._num_bytes -= self._sizes.pop(grammar, 0)
            self._unfinished.append(grammar)
        self._kept[grammar] = future
        self._kept.move_to_end(grammar)
        self._drop_oldest()
        return future

    def _drop_oldest(self) -> None:
        """Drop the least recently requested finished entries until the cache fits its size."""
        while self._unfinished and self._kept[self._unfinished[0]].done():
            grammar = self._unfinished.popleft()
            self._sizes[grammar] = _size(grammar, self._kept[grammar])
            self._num_bytes += self._sizes[grammar]
        while self._num_bytes > self._kept_bytes:
            oldest = next(grammar for grammar in self._kept if grammar in self._sizes)
            self._num_bytes -= self._sizes.pop(oldest)
            del self._kept[oldest]

    def _begin(self, grammar: Grammar) -> Compiling:
        future: Compiling = Future()
        future.set_running_or_notify_cancel()
        self._waiting.put((grammar, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        while True:
            grammar, future = self._waiting.get()
            try:
                future.set_result(self._build(grammar))
            except RequestRejected as error:
                future.set_result(error.with_traceback(None))
            except BaseException as error:  # a panic in llguidance is not an Exception, but callers need an answer
                logger.error("a %s grammar broke the compiler: %s", grammar.kind, type(error).__name__)
                message = f"the {grammar.kind} grammar cannot be compiled: {error}"
                future.set_result(RequestRejected(message, "grammar", NOT_COMPILED))


def _is_of_use(future: Compiling) -> bool:
    """Whether the next caller may get the same future."""
    if not future.done():
        return True
    outcome = future.result()
    if isinstance(outcome, RequestRejected):
        return outcome.code not in (NOT_COMPILED, UNAVAILABLE)
    return not outcome.is_spent


def _size(grammar: Grammar, future: Compiling) -> int:
    """The bytes that a finished entry takes."""
    outcome = future.result()
    return ENTRY_BYTES + len(grammar.text) + (0 if isinstance(outcome, RequestRejected) else outcome.num_bytes)
