"""Mixtures of experts on a GPU: all chosen experts of a mixture in four launches of Triton's kernels and a sort.

The modelling code's own function joins gate and other half. Experts may be packed by one layer each, whose matrices are
stacked here. Knows no router. Invariant: nothing is read back, and a row's bits depend on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import nn

from decoding.errors import PartRefused
from decoding.kernels.gpu.experts import add_chosen, lay_tiles, multiply_chosen
from decoding.kernels.gpu.products import Operands
from decoding.kernels.gpu.toolchain import NO_FUSION
from decoding.model.experts.gates import gate_of
from decoding.model.experts.reading import check_experts, has_known_form
from decoding.model.experts.separate import attach, experts_of, is_mixture, own_forward, serve_here
from decoding.model.replacing.replacer import Calls, Place, Rule
from decoding.model.seam import running_plan
from decoding.weights.device_products import ProductTile, packing_of, product_tile
from decoding.weights.linear import held_by

# Shape suffixes: X experts, M rows, K experts of a row, P pairs of a row and one of its experts, E model width, N inner
# width, O outputs, I input width, T tiles.
TILE_PAIRS = 32  # an expert has few rows even in a prompt
ADDED = 1024  # numbers of a row that one program adds up
JoinGate = Callable[[torch.Tensor], torch.Tensor]  # of [P, 2N]
OTHER_FORM = "they have other parts than transformers' mixtures"
OTHER_PACKING = "they are not packed alike"


class Stacked(NamedTuple):
    """One layer of all experts: matrices [X, O, I] in any order in memory, or packed."""

    operands: Operands
    expert_step: int
    bias_XO: torch.Tensor | None
    shape: tuple[int, int]
    packing: dict[str, int]


class GroupedExperts(nn.Module):
    """apply_gate: from both halves to inner numbers. shares of rows may have any dtype."""

    def __init__(self, gate_up: Stacked, down: Stacked, num_experts: int, apply_gate: JoinGate) -> None:
        super().__init__()
        self.num_experts, self.width = num_experts, down.shape[0]
        self._gate_up, self._down, self._apply_gate = gate_up, down, apply_gate
        self._numbers = torch.arange(num_experts + 1, device=gate_up.operands.weight.device)

    def forward(self, rows_ME: torch.Tensor, chosen_MK: torch.Tensor, shares_MK: torch.Tensor) -> torch.Tensor:
        """[M, E]. Numbers beyond the experts mean none."""
        rows_ME, chosen_MK = rows_ME.contiguous(), _of_real_rows(chosen_MK, self.num_experts).contiguous()
        num_rows, num_ranks = chosen_MK.shape
        width, result_ME = rows_ME.shape[1], torch.empty_like(rows_ME)
        experts_P, pairs_P = torch.sort(chosen_MK.view(-1))
        with torch.cuda.device(rows_ME.get_device()):  # where Triton launches; -1, a CPU's, changes nothing
            tiles_T3 = self._tiles(experts_P)
            both_P2N = _multiply(self._gate_up, rows_ME, pairs_P, tiles_T3, num_ranks)
            inner_PN = self._apply_gate(both_P2N).contiguous()
            results_PE = _multiply(self._down, inner_PN, pairs_P, tiles_T3, 1)
            add_chosen[(num_rows, triton.cdiv(width, ADDED))](
                results_PE, chosen_MK, shares_MK.contiguous(), result_ME, **added_in(num_ranks, self.num_experts, width)
            )
        return result_ME

    def _tiles(self, experts_P: torch.Tensor) -> torch.Tensor:
        """As many as the pairs could need."""
        num_tiles = min(len(experts_P), self.num_experts) + len(experts_P) // TILE_PAIRS
        tiles_T3 = torch.empty(num_tiles, 3, dtype=torch.int32, device=experts_P.device)
        lay_tiles[(num_tiles,)](torch.searchsorted(experts_P, self._numbers), tiles_T3, **laid_in(self.num_experts))
        return tiles_T3


def _multiply(
    layer: Stacked, rows: torch.Tensor, pairs_P: torch.Tensor, tiles_T3: torch.Tensor, num_ranks: int
) -> torch.Tensor:
    """[P, O], of pairs in the order of their rows. num_ranks: pairs of one of `rows`."""
    num_outputs = layer.shape[0]
    tile = expert_tile(rows.dtype, layer.packing["BITS"] > 0)
    out_PO = rows.new_empty(len(pairs_P), num_outputs)
    bias = rows if layer.bias_XO is None else layer.bias_XO
    multiply_chosen[(len(tiles_T3), triton.cdiv(num_outputs, tile.outputs))](
        rows, layer.operands, bias, out_PO, pairs_P, tiles_T3, layer.expert_step,
        **chosen_in(layer.shape, num_ranks, layer.bias_XO is not None, tile), **layer.packing,
    )  # fmt: skip
    return out_PO


def expert_tile(dtype: torch.dtype, is_packed: bool) -> ProductTile:
    """dtype: of the rows."""
    return product_tile(dtype, is_packed)._replace(tokens=TILE_PAIRS)


def laid_in(num_experts: int) -> dict[str, Any]:
    """The constants of `lay_tiles`."""
    padded = triton.next_power_of_2(num_experts)
    return {"EXPERTS": num_experts, "TILE_ROWS": TILE_PAIRS, "EXPERTS_PADDED": padded}


def chosen_in(shape: tuple[int, int], num_ranks: int, has_bias: bool, tile: ProductTile) -> dict[str, Any]:
    """Those of `multiply_chosen`, but for the packing, with Triton's options."""
    sizes = {"TILE_OUTPUTS": tile.outputs, "TILE_ROWS": tile.tokens, "TILE_INPUTS": tile.inputs}
    sizes |= {"OUTPUTS": shape[0], "WIDTH": shape[1], "RANKS": num_ranks, "HAS_BIAS": has_bias}
    return sizes | {"num_warps": tile.num_warps, "num_stages": tile.num_stages} | NO_FUSION


def added_in(num_ranks: int, num_experts: int, width: int) -> dict[str, Any]:
    """Those of `add_chosen`, with Triton's options."""
    padded = triton.next_power_of_2(num_ranks)
    sizes = {"RANKS": num_ranks, "EXPERTS": num_experts, "WIDTH": width, "RANKS_PADDED": padded, "N": ADDED}
    return sizes | NO_FUSION


def _of_real_rows(chosen_MK: torch.Tensor, num_experts: int) -> torch.Tensor:
    """With no experts for the padding of the step that is running, which would have them read for nothing."""
    step = running_plan()
    if step is None or len(step.row_segments_T) != len(chosen_MK):
        return chosen_MK
    return torch.where(step.row_segments_T[:, None] < 0, num_experts, chosen_MK)


def packed_rule() -> Rule:
    """Has these kernels run experts that are packed one by one, of which the originals are dropped."""
    return Rule(
        "mixtures of packed experts in four launches",
        lambda place: is_mixture(place) and experts_of(place.module) is not None,
        lambda place: [_packed(place.module)],
        _check_packed,
        lambda place, grouped: attach(place.module, grouped),
    )


def whole_rule() -> Rule:
    """The same for experts that are not packed: all mixtures, or transformers' own code runs them, which is quicker
    than our seam where nothing was adopted."""
    return Rule(
        "mixtures of experts in four launches",
        lambda place: is_mixture(place) and experts_of(place.module) is None,
        lambda place: [_whole(place.module)],
        _check_whole,
        _serve,
        are_all=True,
    )


def _serve(place: Place, grouped: GroupedExperts) -> None:
    serve_here(place)
    attach(place.module, grouped)


def _whole(module: nn.Module) -> GroupedExperts:
    """Of matrices that share a tensor."""
    own: Any = module
    if not has_known_form(module):
        raise PartRefused(OTHER_FORM)
    weights = [own.gate_up_proj.detach(), own.down_proj.detach()]
    if own.is_transposed:
        weights = [each.transpose(1, 2) for each in weights]
    biases = (own.gate_up_proj_bias.detach(), own.down_proj_bias.detach()) if own.has_bias else (None, None)
    gate_up, down = (_of_tensor(weight_XOI, bias_XO) for weight_XOI, bias_XO in zip(weights, biases, strict=True))
    return GroupedExperts(gate_up, down, len(weights[1]), own._apply_gate)


def _check_whole(grouped: GroupedExperts, place: Place, _calls: Calls) -> None:
    own: Any = place.module
    check_experts(partial(own_forward, own), grouped, grouped.num_experts, grouped.width, own.gate_up_proj)


def _packed(module: nn.Module) -> GroupedExperts:
    """Of matrices that are packed one by one."""
    separate: Any = experts_of(module)
    gate_up, down = _of_layers(separate.gates, separate.ups), _of_layers(separate.downs)
    join = gate_of(module)
    return GroupedExperts(gate_up, down, len(separate.gates), lambda both: join(*both.chunk(2, -1)))


def _check_packed(grouped: GroupedExperts, place: Place, _calls: Calls) -> None:
    separate: Any = experts_of(place.module)
    like = separate.downs[0].weight
    check_experts(separate.one_by_one, grouped, grouped.num_experts, grouped.width, like)


def _of_tensor(weight_XOI: torch.Tensor, bias_XO: torch.Tensor | None) -> Stacked:
    expert_step, *steps = weight_XOI.stride()
    operands = Operands(weight_XOI, weight_XOI, weight_XOI, weight_XOI, *steps)
    shape = (weight_XOI.shape[1], weight_XOI.shape[2])
    bias_XO = None if bias_XO is None else bias_XO.contiguous()
    return Stacked(operands, expert_step, bias_XO, shape, packing_of(0, shape[1], 0))


def _of_layers(*sides: nn.ModuleList) -> Stacked:
    """sides: a layer of each expert; one side's outputs follow the other's."""
    found = [[held_by(layer) for layer in own] for own in zip(*sides, strict=True)]  # of each expert
    matrices = [[matrix for matrix in own if matrix is not None and matrix.form is not None] for own in found]
    if any(len(own) < len(sides) for own in matrices) or len({matrix.form for own in matrices for matrix in own}) > 1:
        raise PartRefused(OTHER_PACKING)
    stack = matrices[0][0].numbers.stacked([[matrix.numbers for matrix in own] for own in matrices])
    if stack is None:
        raise PartRefused(OTHER_PACKING)
    expert_step, *steps = stack.tensors.codes_ON.stride()
    return Stacked(Operands(*stack.tensors, *steps), expert_step, stack.bias_XO, stack.shape, stack.packing)
