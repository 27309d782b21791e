from __future__ import annotations

import numpy as np

from decoding.drafters import growth
from decoding.drafters.base import TopTokens
from decoding.request import Request
from decoding.stores import DraftingStores
from decoding.stores.context import ContextIndex
from decoding.tree import DraftTree
from decoding.verify import Verdict

KNOBS = dict(prior=8.0, relook=True, min_chance=0.0)
PRIOR = np.full(growth.NUM_CLASSES, 0.5)
LOG = None

class SpineDrafter:
    num_top = 10

    def __init__(self, request: Request, session: DraftingStores) -> None:
        self._request = request
        self._adjacency = session.adjacency
        self._index = ContextIndex(request.max_total)
        self._nodes, self._heap = growth.allocate(256)
        self._hits = PRIOR * KNOBS["prior"]
        self._trials = np.full(growth.NUM_CLASSES, KNOBS["prior"])
        self._before_root = -1

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        if top is None:
            return
        end = start + len(top.ids)
        tokens = self._request.tokens
        previous = np.full(len(top.ids), -1, np.int32)
        if start > 0:
            previous[:] = tokens[start - 1 : end - 1]
        else:
            previous[1:] = tokens[: end - 1]
        self._adjacency.harvest(previous, tokens[start:end], top.ids, top.probabilities)

    def propose(self, budget: int) -> DraftTree:
        request = self._request
        tokens = request.tokens
        self._index.extend(tokens)
        self._before_root = int(tokens[-2]) if len(tokens) > 1 else -1
        params = request.speculation
        w = params.without
        limits = growth.Limits(budget, params.max_depth if params.max_depth is not None else 1000, "bigram" not in w, "context_match" not in w, "branches" not in w, KNOBS["relook"], KNOBS["min_chance"])
        beliefs = (self._hits / self._trials).astype(np.float32)
        n = growth.grow(self._adjacency.arrays, self._index.arrays, tokens, self._nodes, self._heap, beliefs, limits)
        self._n = n
        nodes = self._nodes
        return DraftTree(nodes.tokens[:n].copy(), nodes.parents[:n].copy(), nodes.sources[:n].copy())

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        n = len(tree)
        on_path = np.zeros(n, bool)
        on_path[verdict.path] = True
        cls = self._nodes.classes
        # children of path nodes are trials; adjacency ones only if no context sibling was accepted
        ctx_won = np.zeros(n, bool)
        for v in range(1, n):
            p = tree.parents[v]
            if on_path[p] and on_path[v] and tree.sources[v] == 1:
                ctx_won[p] = True
        for v in range(1, n):
            p = tree.parents[v]
            if on_path[p] and (tree.sources[v] == 1 or not ctx_won[p]):
                self._trials[cls[v]] += 1
                self._hits[cls[v]] += on_path[v]
                if LOG is not None:
                    LOG[cls[v], 0] += on_path[v]
                    LOG[cls[v], 1] += 1
        if top is not None:
            previous = tree.tokens[tree.parents]
            previous[0] = self._before_root
            self._adjacency.harvest(previous, tree.tokens, top.ids, top.probabilities)
