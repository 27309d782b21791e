"""A draft tree under revision: chains put in, nodes taken out, siblings kept distinct.

Knows nothing of where tokens come from. Invariant: nodes keep their order, so parents stay before their children.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core.tree import DraftTree, Source
from decoding.sampling.grammar.matcher import GrammarMatcher


class Revision:
    """tree: as proposed; it is not changed."""

    def __init__(self, tree: DraftTree) -> None:
        self._tokens: list[int] = tree.tokens.tolist()
        self._parents: list[int] = tree.parents.tolist()
        self._sources: list[int] = tree.sources.tolist()
        self._is_kept = [True] * len(tree)
        self._children: list[dict[int, int]] = [{} for _ in self._tokens]
        for node in range(1, len(self._tokens)):
            self._children[self._parents[node]][self._tokens[node]] = node

    @property
    def num_kept(self) -> int:
        """Nodes that count against the budget."""
        return sum(self._is_kept) - 1

    def force(self, node: int, tokens: Sequence[int]) -> None:
        """Put `tokens` under `node`, along nodes that are there already as far as they go."""
        for token in tokens:
            child = self._children[node].get(token)
            if child is None:
                child = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(node)
                self._sources.append(Source.GRAMMAR)
                self._is_kept.append(True)
                self._children.append({})
                self._children[node][token] = child
            node = child

    def obey(self, matcher: GrammarMatcher, budget: int) -> None:
        """Take out what the grammar forbids, then put in what it forces, from the root on, while `budget` lasts.

        matcher: at the root, and left there.
        """
        forced: list[tuple[int, list[int]]] = []
        self._visit(0, matcher, forced)
        for node, tokens in sorted(forced):
            self.force(node, tokens[: max(budget - self.num_kept, 0)])

    def _visit(self, node: int, matcher: GrammarMatcher, forced: list[tuple[int, list[int]]]) -> None:
        """Depth-first over the nodes below, `matcher` being at `node`."""
        path: list[tuple[int, list[int]]] = [(node, list(self._children[node].values()))]
        while path:
            node, waiting = path[-1]
            if waiting:
                child = waiting.pop(0)
                if matcher.try_consume(self._tokens[child]):
                    path.append((child, list(self._children[child].values())))
                else:
                    self._cut(child, keeps_itself=matcher.may_end_with(self._tokens[child]))
                continue
            num_children = sum(self._is_kept[child] for child in self._children[node].values())
            if num_children <= 1 and (tokens := matcher.forced()):
                forced.append((node, tokens))
            path.pop()
            if path:
                matcher.rollback(1)

    def _cut(self, node: int, keeps_itself: bool) -> None:
        """Take out the nodes below, and the node itself unless it is an end token where the reply may end."""
        if not keeps_itself:
            self._is_kept[node] = False
            del self._children[self._parents[node]][self._tokens[node]]
        for child in self._children[node].values():
            self._drop(child)
        self._children[node] = {}

    def _drop(self, node: int) -> None:
        self._is_kept[node] = False
        for child in self._children[node].values():
            self._drop(child)

    def tree(self, proposed: DraftTree) -> tuple[DraftTree, DraftTree]:
        """The revised tree, and as much as it begins with of the one that was proposed."""
        kept = np.flatnonzero(self._is_kept).astype(np.int32)
        places = np.full(len(self._tokens), -1, np.int32)
        places[kept] = np.arange(len(kept), dtype=np.int32)
        parents = np.array(self._parents, np.int32)[kept]
        parents[1:] = places[parents[1:]]
        tokens, sources = np.array(self._tokens, np.int32)[kept], np.array(self._sources, np.int8)[kept]
        num_own = int((kept < len(proposed)).sum())
        own = DraftTree(tokens[:num_own], parents[:num_own], sources[:num_own], origins=kept[:num_own])
        names = None
        if proposed.names is not None:
            names = np.zeros(len(kept), np.int32)
            names[:num_own] = proposed.names[kept[:num_own]]
        return DraftTree(tokens, parents, sources, names=names), own
