"""The drafting parameters of a request. They are declared only here; the same record crosses the socket."""

from __future__ import annotations

from dataclasses import dataclass

TRACE_STEPS, TRACE_TREES = "steps", "trees"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """How to draft. With verification "match" this changes how fast the reply comes, never its tokens.

    method: a name of the drafter registry, or "auto". max_nodes: the budget, root not counted; None lets the server
    choose from its measured cost curve. max_depth: edges from the root. without: grow the tree in the shape of the
    method's paper and leave out the named parts; "best_first" leaves out none. branching: the isotropic method's k.
    consensus: the paper's definition of it, or the published code's. candidates: how the stand method draws them,
    "coupled" to the target's own noise, "independent" of it, or "deterministic"; None takes what `verification` needs.
    verification: "match" accepts the target's own tokens, those of plain decoding; "rejection" is standard speculative
    sampling, which keeps the distribution only. sources: `Source` names in lower case that a tree may be grown from;
    None allows all that the method knows. trace: report every step ("steps"), also with its tree ("trees"), or None.
    """

    method: str = "auto"
    max_nodes: int | None = None
    max_depth: int | None = None
    without: frozenset[str] = frozenset()
    branching: int = 3
    sources: frozenset[str] | None = None
    min_probability: float | None = None
    consensus: str = "occurrences"
    candidates: str | None = None
    verification: str = "match"
    trace: str | None = None

    def may_use(self, source: str) -> bool:
        """Whether trees may be grown from a source, a `Source` name in lower case."""
        return self.sources is None or source in self.sources
