"""Routers in one compiled call: which experts a row is for, and each one's share.

A router is replaced only if a trial on random rows shows which of the known laws it computes. Of experts that are
equally likely the first counts. Invariant: a row's experts and shares depend on the row alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from decoding.errors import PartRefused
from decoding.kernels.cpu.experts import TARGET_SHARES, route_floats, route_halves
from decoding.kernels.cpu.program import MOST_ROWS, SOURCE, TARGET, Call, Program, Rooms
from decoding.model.replacing.replacer import Calls, Place, Rule
from decoding.weights.matrix import Matrix, fits_panels

# Shape suffixes: M rows, E model width, X experts, K experts of a row.
TRIAL_ROWS = 64
SAME_ROWS = 0.9  # the share of rows that must agree: bfloat16 logits are often equal, and either expert may be chosen
OTHER_PARTS = "they have other parts than a weight and a number of experts, or groups of experts"
OTHER_INTERFACE = "they do not give logits, shares and experts"
OTHER_LAW = "they choose by none of the known laws"
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
Routed = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor
]  # as transformers: logits [M, X], shares [M, K], experts [M, K]


class Law(NamedTuple):
    """From logits to shares. is_sigmoid: instead of a softmax over all experts. is_normalised: shares are divided by
    their sum. scale: of shares, at last. bias_X: added for the choice alone. rounds: shares have the model's dtype."""

    is_sigmoid: bool
    is_normalised: bool
    scale: float
    bias_X: torch.Tensor | None
    rounds: bool


class FusedRouter(nn.Module):
    """Replaces transformers' routers that return logits, shares and experts."""

    def __init__(self, weight_XE: torch.Tensor, bias_X: torch.Tensor | None, num_ranks: int, law: Law) -> None:
        super().__init__()
        self.num_ranks, self.dtype = num_ranks, weight_XE.dtype
        self._matrix = Matrix.of(weight_XE, bias_X).in_panels()
        self.num_experts, self.width = self._matrix.shape
        self._law, self._bias = law, None if law.bias_X is None else law.bias_X.float().contiguous()
        self._rooms = Rooms(MOST_ROWS, self.dtype)
        phases = self.phases(0, 0, 0, 0)
        program = Program(phases)
        self._fields = program, program.fields_of(phases[0][0]), program.fields_of(phases[1][0])

    def phases(self, source: int, logits: int, chosen: int, shares: int) -> list[list[Call]]:
        """A program's calls, between addresses."""
        law, route = self._law, route_halves if self.dtype == torch.bfloat16 else route_floats
        flags = (int(law.is_sigmoid), int(law.is_normalised), int(law.rounds))
        scale = int(np.float32(law.scale).view(np.uint32))
        bias = 0 if self._bias is None else self._bias.data_ptr()
        fields = (logits, chosen, 0, 0, self.num_ranks, self.num_experts, shares, bias, *flags, scale)
        return [[self._matrix.call(source, logits, self._rooms)], [Call(route, fields)]]

    def __call__(self, hidden: torch.Tensor) -> Routed:
        hidden_ME = hidden.reshape(-1, self.width).contiguous()
        num_rows = len(hidden_ME)
        logits_MX = hidden_ME.new_empty(num_rows, self.num_experts)
        chosen_MK = torch.empty(num_rows, self.num_ranks, dtype=torch.int64)
        shares_MK = torch.empty(num_rows, self.num_ranks)
        program, linear, route = self._fields
        program.begin(num_rows)
        linear[SOURCE], linear[TARGET] = hidden_ME.data_ptr(), logits_MX.data_ptr()
        route[SOURCE], route[TARGET], route[TARGET_SHARES] = (
            each.data_ptr() for each in (logits_MX, chosen_MK, shares_MK)
        )
        program.run(torch.get_num_threads())
        return logits_MX, shares_MK.to(self.dtype) if self._law.rounds else shares_MK, chosen_MK


def routing_rule(dtype: torch.dtype, lacks: str) -> Rule:
    """Of routers beside layers of this dtype. lacks: of panels, which multiply their weights."""
    return Rule(
        "routers fused",
        lambda place: type(place.module).__name__.endswith("Router"),
        partial(_candidates, dtype),
        _check_law,
        lacks=lacks,
    )


def _candidates(dtype: torch.dtype, place: Place) -> Iterator[FusedRouter]:
    """By each of the known laws."""
    own: Any = place.module
    weight_XE, num_ranks = getattr(own, "weight", None), getattr(own, "top_k", None)
    has_groups = max(getattr(own, name, None) or 1 for name in ("n_group", "num_group")) > 1
    if not isinstance(weight_XE, torch.Tensor) or not isinstance(num_ranks, int) or has_groups:
        raise PartRefused(OTHER_PARTS)
    if weight_XE.dim() != 2 or weight_XE.dtype != dtype or not fits_panels(weight_XE):
        raise PartRefused(OTHER_PARTS)
    logits_MX, shares_MK, _ = _routed(place, _trial_rows(weight_XE))
    if logits_MX.dtype != dtype or shares_MK.shape != (TRIAL_ROWS, num_ranks):
        raise PartRefused(OTHER_INTERFACE)
    bias_X = getattr(own, "bias", None)
    for law in _laws(place.module, len(weight_XE), shares_MK.dtype != torch.float32):
        yield FusedRouter(weight_XE.detach(), None if bias_X is None else bias_X.detach(), num_ranks, law)


def _check_law(fused: FusedRouter, place: Place, _calls: Calls) -> None:
    weight_XE: Any = place.module.weight
    rows_ME, dtype = _trial_rows(weight_XE), weight_XE.dtype
    (_, *expected), (_, *found) = _routed(place, rows_ME), fused(rows_ME)
    expected_MX, found_MX = (_spread(shares, chosen, len(weight_XE)) for shares, chosen in (expected, found))
    is_close_MX = torch.isclose(found_MX, expected_MX, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    if float(is_close_MX.all(1).float().mean()) < (1.0 if dtype == torch.float32 else SAME_ROWS):
        raise PartRefused(OTHER_LAW)


def _trial_rows(weight_XE: torch.Tensor) -> torch.Tensor:
    rows_ME = torch.randn(TRIAL_ROWS, weight_XE.shape[1], generator=torch.Generator().manual_seed(0))
    return rows_ME.to(weight_XE.dtype)


def _routed(place: Place, rows_ME: torch.Tensor) -> Routed:
    """By the model's own code. Raises PartRefused where that has another interface."""
    with torch.inference_mode():
        try:
            own: Any = place.module
            logits_MX, shares_MK, chosen_MK = own(rows_ME)
            _spread(shares_MK, chosen_MK, len(own.weight))
        except Exception as error:  # modelling code may raise anything
            raise PartRefused(OTHER_INTERFACE) from error
    return logits_MX, shares_MK, chosen_MK


def _laws(router: nn.Module, num_experts: int, rounds: bool) -> Iterator[Law]:
    tensors = [*router.named_parameters(), *router.named_buffers()]
    biases = [each.detach().flatten() for name, each in tensors if name not in ("weight", "bias")]
    biases = [each for each in biases if len(each) == num_experts]
    scales = {1.0, float(getattr(router, "routed_scaling_factor", 1.0) or 1.0)}
    kinds = product((False, True), (False, True), sorted(scales), [None, *biases])
    return (Law(*kind, rounds) for kind in kinds)


def _spread(shares_MK: torch.Tensor, chosen_MK: torch.Tensor, num_experts: int) -> torch.Tensor:
    """[M, X]: each expert's share, 0 of those that were not chosen."""
    shares_MX = torch.zeros(len(shares_MK), num_experts)
    return shares_MX.scatter_(1, chosen_MK, shares_MK.float())
