"""What one step did for one request, node by node, for those who ask to see it. Pure data; `tracing` makes it."""

from __future__ import annotations

import msgspec


class NodeTrace(msgspec.Struct, frozen=True):
    """A node of the draft tree. source: `Source` in lower case; named_by: all that named the node; logprob: what the
    target gave it after its parent.

    parent: -1 for the root, which has no logprob. Log probabilities are the model's own, see `logprobs`.
    """

    token_id: int
    parent: int
    source: str
    named_by: list[str]
    logprob: float | None
    is_accepted: bool


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """number: which of the request's target forwards it was, from 1. sources: of the tokens it gave, in order.

    drafted: nodes of the tree, root not counted; accepted: those on the path; tree: where trees are asked for.
    """

    number: int
    method: str
    drafted: int
    accepted: int
    sources: list[str]
    tree: list[NodeTrace] | None = None
