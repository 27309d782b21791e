"""How a reply is drafted, as a caller asks for it. Declared here alone; it also crosses the socket."""

from __future__ import annotations

from dataclasses import dataclass

TRACE_STEPS, TRACE_TREES = "steps", "trees"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """How to draft. Changes how fast the reply comes, never what it says.

    method: a name of the drafter registry, or "auto". max_nodes: budget, root not counted; None lets
    the server choose from its measured cost curve. max_depth: edges from the root. `without` asks
    for the method's shape as its paper has it and names parts of that to leave out, "best_first" none;
    `branching` is the isotropic method's k;
    `consensus` chooses between the paper's and the published code's definition of it. `candidates` is how
    the stand method draws: "coupled" to the target's own noise, "independent" of it, or "deterministic"; None
    is what the verification wants. verification: "match", the target's own tokens and so those of plain
    decoding, or "rejection", standard speculative sampling, exact in law alone; then the words above are not true.
    sources: what a tree may be grown from, by `Source` names in lower case; None for all that the method knows.
    trace: whether to tell of every step, or of every step with its tree; None for neither.
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
