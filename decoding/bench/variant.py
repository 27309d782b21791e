"""The ways of drafting that the table compares: registered methods, their options, and budgets.

Knows nothing of engines. Invariant: a label and a budget name one variant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.spine import spine

NONE = "none"
AUTO = "auto"
SPINE = "spine"
PAPER = "spine, the paper's shape"
BUDGETS = (8, 16, 60)

_ABLATED = {"best_first": PAPER}


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the table. The labels of the spine method's ablations begin with "spine"."""

    label: str
    speculation: SpeculationParams


def variants(methods: Iterable[str], budgets: Iterable[int]) -> list[Variant]:
    """`none`, each method and option at each budget, and `auto` with the budget that the server chooses."""
    found = [Variant(NONE, SpeculationParams(method="none", max_nodes=0))]
    wanted = [shape for method in methods for shape in _shapes(method)]
    for label, options in wanted:
        found += [Variant(label, replace(options, max_nodes=budget)) for budget in budgets]
    found.append(Variant(AUTO, SpeculationParams(method="auto", max_nodes=None)))
    return found


def drafting_methods(methods: Iterable[str]) -> list[str]:
    """The methods of an engine that draft."""
    return [method for method in methods if method != NONE]


def _shapes(method: str) -> list[tuple[str, SpeculationParams]]:
    """The labels and parameters of a method's variants, without a budget."""
    if method == NONE:
        return []
    if method == "isotropic":
        return [(f"isotropic k={k}", SpeculationParams(method=method, branching=k)) for k in (3, 5)]
    shapes = [(method, SpeculationParams(method=method))]
    if method == SPINE:
        for part in spine.ABLATIONS:
            label = _ABLATED.get(part, f"spine without {part.replace('_', ' ')}")
            shapes.append((label, SpeculationParams(method=method, without=frozenset((part,)))))
    return shapes
