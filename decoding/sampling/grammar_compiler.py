"""Compiled grammars, each compiled once, in one thread beside the steps.

Owns the thread and the grammars last asked for. Knows nothing of how one is compiled.
Invariant: every future ends, with a grammar or with RequestRejected for `grammar`.
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
from decoding.sampling.grammar_builder import rejected
from decoding.sampling.grammar_matcher import CompiledGrammar

MAX_KEPT = 64  # grammars

logger = logging.getLogger("gander.grammar")


class GrammarCompiler:
    """build: compiles one grammar, in the thread."""

    def __init__(self, build: Callable[[Grammar], CompiledGrammar]) -> None:
        self._build = build
        self._kept: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()  # least recently asked for first
        self._waiting: SimpleQueue[tuple[Grammar, Future[CompiledGrammar]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Returns at once. A grammar that failed is tried again; one future may be many callers', so none cancels."""
        future = self._kept.get(grammar)
        if future is None or (future.done() and future.exception() is not None):
            future = self._begin(grammar)
        self._kept[grammar] = future
        self._kept.move_to_end(grammar)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return future

    def _begin(self, grammar: Grammar) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
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
                future.set_exception(error)
            except BaseException as error:  # llguidance's panics are no Exception; whoever waits is told of all
                logger.exception("a %s grammar broke the compiler", grammar.kind)
                future.set_exception(rejected(f"the {grammar.kind} grammar cannot be compiled: {error}"))
