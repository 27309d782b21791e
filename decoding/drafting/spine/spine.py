"""GOOSE's own spine trees: a deep chain copied from context, with branches of successors, shaped by the paper's rules.

Owns what one request's drafting remembers: context index and running spine acceptance. Trees that are grown by
estimated chances instead are `one_tree`'s.
"""

from __future__ import annotations

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.harvest import teach_prompt, teach_tree
from decoding.drafting.spine.paper_tree import SpineShape, build_spine_tree
from decoding.drafting.tree.growth import limits_of
from decoding.drafting.tree.nodes import to_tree
from decoding.stores.context import BY_LENGTHS, BY_OCCURRENCES, MAX_CHAIN, ContextIndex
from decoding.stores.session import Session
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS

ABLATIONS = ("branches", "bigram", "bypass", "context_match")
CONSENSUS = {"lengths": BY_LENGTHS, "occurrences": BY_OCCURRENCES}

_INITIAL_ACCEPTANCE = 0.3
_SMOOTHING = 0.3
_BYPASS_SUFFIX = 8


class SpineDrafter:
    """GOOSE (sections 4.1 to 4.3): Algorithm 1 with ratio tiers by running acceptance, bypass to a chain.

    `without` leaves out "branches" (of copied nodes), "bigram", "context_match" or "bypass".
    """

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, session: Session) -> None:
        self._request = request
        self._ngrams = session.ngrams
        self._index = ContextIndex(request.max_total)
        self._acceptance = _INITIAL_ACCEPTANCE
        self._num_tokens = 0

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._ngrams, self._request.tokens, start, top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """Algorithm 2's routing: a chain where the match is trusted, else Algorithm 1 at the tier's ratio."""
        tokens, speculation = self._request.tokens, self._request.speculation
        self._num_tokens = len(tokens)
        self._index.extend(tokens)
        limits = limits_of(budget, speculation.max_depth)
        match = self._index.match(tokens, max(limits.max_nodes, MAX_CHAIN))
        chain = match.chain[:MAX_CHAIN]
        spine_len = max(1, int(limits.max_nodes * spine_ratio(self._acceptance)))
        is_unanimous = match.by_lengths if speculation.consensus == "lengths" else match.by_occurrences
        if "bypass" not in speculation.without and (is_unanimous or match.suffix_len >= _BYPASS_SUFFIX):
            chain, spine_len = match.chain, limits.max_nodes
        if "context_match" in speculation.without:
            chain = chain[:0]
        uses_bigram, branches_spine = "bigram" not in speculation.without, "branches" not in speculation.without
        spine_len = min(spine_len, len(chain), limits.max_nodes, limits.max_depth)
        before_root = int(tokens[-2]) if len(tokens) > 1 else NO_TOKEN
        shape = SpineShape(chain, before_root, limits, spine_len, uses_bigram, branches_spine)
        return to_tree(*build_spine_tree(self._ngrams.arrays, int(tokens[-1]), shape))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        num_spine = int((tree.sources == Source.CONTEXT).sum())
        if num_spine:
            rate = float((tree.sources[verdict.path] == Source.CONTEXT).sum()) / num_spine
            self._acceptance += _SMOOTHING * (rate - self._acceptance)
        teach_tree(self._ngrams, self._request.tokens[: self._num_tokens], tree, verdict, top)


def spine_ratio(acceptance: float) -> float:
    """The share of the budget on the spine, by running spine acceptance (GOOSE, table 5)."""
    if acceptance < 0.2:
        return 0.15
    return 0.30 if acceptance < 0.4 else 0.50
