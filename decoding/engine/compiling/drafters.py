"""The kernels of each drafting method, compiled or loaded by drafting with it.

Knows what a request may ask of a method. Invariant: what serving a method calls has been called here.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from decoding.cache.kv_store import KvStore
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.drafter import Drafter
from decoding.drafting.registry import BEST_FIRST, GROWN, METHODS, start
from decoding.drafting.stand.stand import REJECTION
from decoding.sampling.law import law_of
from decoding.sampling.sampler import verdict_on
from decoding.stores.session import lone_session
from decoding.stores.successor_table import NUM_SUCCESSORS

VOCABULARY = 1024
SESSION_BYTES = 2**16  # of one small enough to grow


def warm_up(name: str) -> None:
    """Compile all that serving a method calls, by drafting a text that repeats itself after all tables have grown.

    Cached on disk between starts.
    """
    tokens = np.concatenate((np.arange(600, dtype=np.int32), np.tile(np.arange(7, dtype=np.int32), 6)))
    sampling, ways = SamplingParams(max_tokens=8, temperature=1.0), [SpeculationParams(method=name)]
    if name in GROWN:
        ways.append(SpeculationParams(method=name, without=frozenset((BEST_FIRST,))))
    if name == "stand":
        ways.append(SpeculationParams(method=name, verification=REJECTION))
    has_model = {"unused": (False,), "optional": (False, True), "needed": (True,)}[METHODS[name].draft_model]
    for speculation, runs_model in product(ways, has_model):
        request = Request(id=f"warm-up-{name}", prompt=tokens, sampling=sampling, speculation=speculation)
        store = KvStore((), 1, torch.float32, torch.device("cpu"))
        state = DraftModelState(request, store, VOCABULARY) if runs_model else None
        _draft_once(start(name, request, lone_session(SESSION_BYTES), state), request, state)


def _draft_once(drafter: Drafter, request: Request, state: DraftModelState | None) -> None:
    """A step as the engine does it, on made-up numbers."""
    drafter.observe_prefill(0, _made_up_top(request.num_tokens))
    drafter.probe()
    budget = DraftBudget(12)
    if state is not None:
        assert state.grower is not None
        state.grower.prepare(DraftBudget(12, round_price=1.0))  # which is too dear
        state.grower.begin(budget, 12, 8)
        num_rows = 1
        while (asked := state.grower.grow(_made_up_top(num_rows))) is not None:
            num_rows = len(asked.tokens)
    _verify(drafter, drafter.propose(budget), request)
    _verify(drafter, root_only(int(request.tokens[-1])), request)  # a step without a tree of its own
    drafter.propose(budget)


def _verify(drafter: Drafter, tree: DraftTree, request: Request) -> None:
    verdict = verdict_on(tree, torch.zeros(len(tree), VOCABULARY), request, law_of(request.sampling), None)
    request.extend(verdict.tokens[:1])
    drafter.observe(tree, verdict, _made_up_top(len(tree)))


def _made_up_top(num_rows: int) -> TopTokens:
    top_ids = np.tile(np.arange(NUM_SUCCESSORS, dtype=np.int32), (num_rows, 1))
    return TopTokens(top_ids, np.full(top_ids.shape, 0.1, np.float32))
