"""A decoder layer of Llama's form on a GPU, in eleven launches: four products, attention in two, and what is between.

The form: norm, attention with rotation, sum, norm, gated MLP, sum. Layers of the same input are one matrix where their
weights are not packed; another MLP than a gated one is called as it is. Knows nothing of how such layers are found.
Invariant: there is one copy of the weights, and a row's bits depend on the row alone where those of products do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import nn

from decoding.attention.triton.tiles import padded_width
from decoding.attention.triton.triton_attention import TritonAttention
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.step_tensors import StepTensors
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.rows import gate, normalise, rotate_and_store
from decoding.kernels.gpu.toolchain import NO_FUSION
from decoding.model.layers.form import StandIn
from decoding.model.seam import Seam

# Shape suffixes: M rows, E model width, N inner width, O outputs, I input width, H query heads, D key width.
Products = Callable[[torch.Tensor], Sequence[torch.Tensor]]  # of rows [M, I], by several layers: [M, O] each
MOST_GATED = 1024  # numbers that one program computes
WARP_NUMBERS = 512  # of a row, for each warp that normalises it
MOST_WARPS = 16


class Norm(NamedTuple):
    weight_E: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What a layer computes with. inputs: queries, keys and values. head_norms: of queries and of keys, or none."""

    input_norm: Norm
    inputs: Products
    head_norms: tuple[Norm, ...]
    output: nn.Module
    mlp_norm: Norm
    mlp: Callable[[torch.Tensor], torch.Tensor]


class DeviceLayer(StandIn):
    """parts: of `layer`, whose attention is `spec` of `seam`."""

    def __init__(self, layer: nn.Module, parts: Parts, seam: Seam, spec: LayerSpec) -> None:
        super().__init__(layer, spec)
        assert isinstance(seam.backend, TritonAttention), seam.backend
        self._parts, self._seam, self._attention = parts, seam, seam.backend

    def _run(self, hidden_1ME: torch.Tensor, cosines_1MD: torch.Tensor, sines_1MD: torch.Tensor) -> torch.Tensor:
        parts, step, hidden_ME = self._parts, self._seam.plan, hidden_1ME[0]
        with torch.cuda.device(hidden_ME.get_device()):  # where Triton launches; -1, a CPU's, changes nothing
            given = parts.inputs(normalised(hidden_ME, parts.input_norm))
            query_MHD = rotated(given, parts.head_norms, cosines_1MD[0], sines_1MD[0], self.spec, step)
            attended_MHV = self._attention.attend_stored(self.spec, query_MHD.transpose(0, 1), step)
            summed_ME, normed_ME = added(hidden_ME, parts.output(attended_MHV.flatten(1)), parts.mlp_norm)
            return (summed_ME + parts.mlp(normed_ME))[None]


@dataclass(frozen=True, slots=True)
class DeviceMlp:
    """inputs: gate and up."""

    inputs: Products
    down: nn.Module

    def __call__(self, rows_ME: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(gated(*self.inputs(rows_ME)))
        return result


@dataclass(frozen=True, slots=True)
class OwnMlp:
    """A mixture of experts, say, as it is."""

    module: nn.Module

    def __call__(self, rows_ME: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(rows_ME[None])
        return result[0]


class Joined:
    """`Products` of layers whose weights become parts of one matrix."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._widths = [each.out_features for each in linears]
        self._weight_OI = _joined([each.weight for each in linears])
        self._bias_O = None if linears[0].bias is None else _joined([each.bias for each in linears])

    def __call__(self, rows_MI: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(F.linear(rows_MI, self._weight_OI, self._bias_O), self._widths, 1)


def products_of(linears: Sequence[nn.Module]) -> Products:
    """One product of layers that are not packed, else one of each."""
    own: list[Any] = list(linears)
    if all(type(each) is nn.Linear for each in own) and len({each.bias is None for each in own}) == 1:
        return Joined(own)
    return lambda rows_MI: [each(rows_MI) for each in own]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor, of which the parts are parts from here on."""
    whole = torch.cat([each.detach() for each in parts])
    for part, place in zip(parts, torch.split(whole, [len(each) for each in parts]), strict=True):
        part.data = place
    return whole


def normalised(rows_ME: torch.Tensor, norm: Norm) -> torch.Tensor:
    """[M, E]"""
    normed_ME = torch.empty_like(rows_ME)
    constants = normalised_in(rows_ME.shape[1], norm.eps, False)
    normalise[(len(rows_ME),)](rows_ME, rows_ME, norm.weight_E, normed_ME, normed_ME, **constants)
    return normed_ME


def added(rows_ME: torch.Tensor, others_ME: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """[M, E] each: the sum of both, and its norm."""
    summed_ME, normed_ME = torch.empty_like(rows_ME), torch.empty_like(rows_ME)
    constants = normalised_in(rows_ME.shape[1], norm.eps, True)
    normalise[(len(rows_ME),)](rows_ME, others_ME.contiguous(), norm.weight_E, summed_ME, normed_ME, **constants)
    return summed_ME, normed_ME


def rotated(
    given: Sequence[torch.Tensor],
    norms: Sequence[Norm],
    cosines_MD: torch.Tensor,
    sines_MD: torch.Tensor,
    spec: LayerSpec,
    step: StepTensors,
) -> torch.Tensor:
    """[M, H, D]: queries, normalised and turned. given: queries, keys and values, of which the last two are stored."""
    query, key, value = given
    num_rows = len(query)
    query_MHD = query.new_empty(num_rows, spec.num_query_heads, spec.key_dim)
    weights = [norm.weight_E for norm in norms] or [query, query]
    rotate_and_store[(-(-num_rows // BLOCK_LEN), spec.num_query_heads + 2 * spec.num_kv_heads)](
        query, key, value, *weights, cosines_MD, sines_MD, query_MHD, *step.store.planes(spec.index), step.slots_T,
        query.stride(0), key.stride(0), value.stride(0), num_rows, **rotated_in(spec, norms),
    )  # fmt: skip
    return query_MHD


def gated(gate_MN: torch.Tensor, up_MN: torch.Tensor) -> torch.Tensor:
    """[M, N]: silu(gate) * up."""
    num_rows, width = gate_MN.shape
    out_MN, constants = gate_MN.new_empty(num_rows, width), gated_in(width)
    gate[(num_rows, triton.cdiv(width, constants["N"]))](
        gate_MN, up_MN, out_MN, gate_MN.stride(0), up_MN.stride(0), **constants
    )
    return out_MN


def normalised_in(width: int, eps: float, has_added: bool) -> dict[str, Any]:
    """The constants of `normalise`, with Triton's options."""
    padded = triton.next_power_of_2(width)
    num_warps = max(1, min(padded // WARP_NUMBERS, MOST_WARPS))
    return {"WIDTH": width, "EPS": eps, "HAS_ADDED": has_added, "N": padded, "num_warps": num_warps} | NO_FUSION


def rotated_in(spec: LayerSpec, norms: Sequence[Norm]) -> dict[str, Any]:
    """Those of `rotate_and_store`."""
    query_eps, key_eps = [norm.eps for norm in norms] or [0.0, 0.0]
    return {
        "NUM_HEADS": spec.num_query_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "KEY_DIM": spec.key_dim,
        "VALUE_DIM": spec.value_dim,
        "HALF_WIDTH": padded_width(spec.key_dim // 2),
        "VALUE_WIDTH": padded_width(spec.value_dim),
        "QUERY_EPS": query_eps,
        "KEY_EPS": key_eps,
        "HAS_NORMS": bool(norms),
    } | NO_FUSION


def gated_in(width: int) -> dict[str, Any]:
    """Those of `gate`."""
    return {"WIDTH": width, "N": min(MOST_GATED, triton.next_power_of_2(width))} | NO_FUSION
