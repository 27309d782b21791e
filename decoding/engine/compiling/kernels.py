"""The kernels of this process: those of plain replies at once, those of drafting at once or while requests run.

Knows nothing of the engine. Invariant: a method is had once all it calls is loaded, so that no step waits for a
compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from threading import Thread

from decoding.engine.compiling.compiler import Compiler, compile_side_by_side
from decoding.engine.compiling.groups import LAYERS, PLAIN, methods, run_group, weights_group
from decoding.kernels.cache import is_complete, note_complete

logger = logging.getLogger("gander.engine")


class Kernels:
    """compiler: at work on them; None where all are compiled, or where the caller waits for what is not."""

    def __init__(self, compiler: Compiler | None = None) -> None:
        self._compiler = compiler
        self._missing = methods()
        self._has_plain = False

    @property
    def missing(self) -> list[str]:
        """The methods that cannot be used yet."""
        return list(self._missing)

    def has(self, method: str) -> bool:
        return method not in self._missing

    def load_plain(self) -> None:
        """What every reply needs."""
        if not self._has_plain:
            run_group(PLAIN)
            self._has_plain = True

    def wait_for_layers(self) -> None:
        """Rather than have the model compile them, and exact attention, here as well."""
        if self._compiler is not None:
            self._compiler.wait_for(LAYERS)

    def load_weights(self, kinds: Collection[tuple[int, int, int]]) -> None:
        """Those that multiply weights of these bits, groups and bytes of a scale. Each takes seconds to compile."""
        groups = [weights_group(*kind) for kind in sorted(kinds)]
        missing = [group for group in groups if not is_complete(group)]
        if len(missing) > 1:
            compile_side_by_side(missing)
        for group in groups:
            run_group(group)
        for group in missing:
            note_complete(group)

    def load(self) -> None:
        """All of them, unless they are to come while requests run."""
        if self._compiler is None:
            self.load_plain()
            self._load_missing()

    def load_beside(self) -> None:
        """Load whatever is not there as it comes, in a thread: its steps are slower meanwhile, but nobody waits."""
        if self._missing:
            Thread(target=self._load_missing, name="kernels", daemon=True).start()

    def _load_missing(self) -> None:
        is_complete = True
        for method in self.missing:
            if self._compiler is not None:
                self._compiler.wait_for(method)
            try:
                run_group(method)
            except Exception:
                is_complete = False
                logger.exception("The kernels of %s cannot be compiled: requests for it are served plain.", method)
            else:
                self._missing.remove(method)
        if self._compiler is not None:
            self._compiler.finish()
        if is_complete:
            note_complete()
