"""Computes the changes that a request's processors make to every row of its tree, before any token is drawn.

On the host a row is processed when the walk reaches it; the device draws from all rows at once, so all changes are
prepared while the forward runs. Invariant: the processors' own state does not change.
"""

from __future__ import annotations

from decoding.core.tree import DraftTree
from decoding.kernels.cpu.sampling.edits import Mask
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.sampling.logits_processors import Entries, LogitsProcessors


class TreeEdits:
    """entries: the same for all rows. entries_after, masks: for each node's row. Raises BrokenGrammar."""

    def __init__(self, processors: LogitsProcessors, tree: DraftTree) -> None:
        self.penalties = processors.penalties
        self.entries = processors.entries()
        self.entries_after: list[Entries] = []
        paths: list[list[int]] = [[]]
        for node in range(len(tree)):
            if node > 0:
                paths.append([*paths[tree.parents[node]], int(tree.tokens[node])])
            self.entries_after.append(processors.entries_after(paths[node]))
        self.masks: list[Mask | None] = [processors.allowed_W] * len(tree)
        if processors.matcher is not None:
            self._follow(tree, processors.matcher.copy(), 0)

    def _follow(self, tree: DraftTree, matcher: GrammarMatcher, node: int) -> None:
        """Set the masks of a node and of the descendants that the grammar accepts; a walk never reaches the others."""
        mask_W, allowed_W = matcher.mask(), self.masks[node]
        self.masks[node] = mask_W if allowed_W is None else mask_W[: len(allowed_W)] & allowed_W
        for child in range(node + 1, len(tree)):
            if tree.parents[child] == node and matcher.try_consume(int(tree.tokens[child])):
                self._follow(tree, matcher, child)
                matcher.rollback(1)
