"""A trace of one step of one request, node by node, for callers who ask for it. Pure data; `tracing` makes it."""

from __future__ import annotations

import msgspec


class NodeTrace(msgspec.Struct, frozen=True):
    """A node of the draft tree. parent: its index, -1 for the root. source: `Source` in lower case. named_by: all
    sources that proposed the node. logprob: the target's for the token after the parent (the model's own, see
    `logprobs`); None for the root.
    """

    token_id: int
    parent: int
    source: str
    named_by: list[str]
    logprob: float | None
    is_accepted: bool


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """number: counts the request's target forwards from 1. drafted: nodes of the tree, root not counted. accepted:
    nodes on the accepted path. sources: one for each emitted token, in order. tree: None unless the request asks for
    trees.
    """

    number: int
    method: str
    drafted: int
    accepted: int
    sources: list[str]
    tree: list[NodeTrace] | None = None
