"""Compiled grammars, each compiled once, in one thread beside the steps.

Owns the thread and the grammars last asked for. Knows nothing of how one is compiled.
Invariant: every future ends, with a grammar or with the RequestRejected that says why there is none: as a value, since
an exception that is kept and raised holds the frames of whoever raised it, each time more.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.sampling.grammar.matcher import CompiledGrammar

KEPT_BYTES = 256 * 2**20  # of compiled grammars and of the texts they were asked for by
ENTRY_BYTES = 1024  # of each beside them
NOT_COMPILED = "grammar_not_compiled"  # code of a refusal that says nothing of the grammar

logger = logging.getLogger("gander.grammar")

Compiling = Future[CompiledGrammar | RequestRejected]


class GrammarCompiler:
    """build: compiles one grammar, in the thread; kept_bytes: of grammars kept for who asks again."""

    def __init__(self, build: Callable[[Grammar], CompiledGrammar], kept_bytes: int = KEPT_BYTES) -> None:
        self._build = build
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Grammar, Compiling] = OrderedDict()  # least recently asked for first
        self._waiting: SimpleQueue[tuple[Grammar, Compiling]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def compile(self, grammar: Grammar) -> Compiling:
        """Returns at once. One future may be many callers', so none cancels.

        What a grammar came to is kept, its refusal too; one that broke the compiler, or a reply, is compiled again.
        """
        future = self._kept.get(grammar)
        if future is None or not _is_of_use(future):
            future = self._begin(grammar)
        self._kept[grammar] = future
        self._kept.move_to_end(grammar)
        self._drop_oldest()
        return future

    def _drop_oldest(self) -> None:
        """Of those that are compiled, as many as are too much."""
        sizes = {grammar: _size(grammar, future) for grammar, future in self._kept.items() if future.done()}
        too_much = sum(sizes.values()) - self._kept_bytes
        for grammar, size in sizes.items():
            if too_much <= 0:
                return
            del self._kept[grammar]
            too_much -= size

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
            except BaseException as error:  # llguidance's panics are no Exception; whoever waits is told of all
                logger.error("a %s grammar broke the compiler: %s", grammar.kind, type(error).__name__)
                message = f"the {grammar.kind} grammar cannot be compiled: {error}"
                future.set_result(RequestRejected(message, "grammar", NOT_COMPILED))


def _is_of_use(future: Compiling) -> bool:
    """Whether whoever asks again is to be given the same."""
    if not future.done():
        return True
    outcome = future.result()
    if isinstance(outcome, RequestRejected):
        return outcome.code != NOT_COMPILED
    return not outcome.is_spent


def _size(grammar: Grammar, future: Compiling) -> int:
    """Bytes."""
    outcome = future.result()
    return ENTRY_BYTES + len(grammar.text) + (0 if isinstance(outcome, RequestRejected) else outcome.num_bytes)
