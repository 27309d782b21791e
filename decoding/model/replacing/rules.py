"""The table of rules: the forms of modules that are replaced, by what on the CPU and by what on a device.

Knows the rules of every room, and no model. Attention and states are no modules: the probe finds the calls of them,
which the seams answer on either, and without which a model is refused. Invariant: of each module the first rule of its
column stands of which something passes its trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from decoding.model.experts.cpu_experts import together_rule
from decoding.model.experts.reading import separating_rule
from decoding.model.experts.router import routing_rule
from decoding.model.layers import activations, cpu_parts
from decoding.model.layers.activations import silu_rule
from decoding.model.layers.norms import norm_rule
from decoding.model.linear import exact as linear_exact
from decoding.model.linear.packed import packing_rule
from decoding.model.replacing.replacer import Replacements, Rule
from decoding.model.replacing.row_safe import ACTIVATIONS, ROTARIES
from decoding.model.replacing.row_safe import REPLACED as ROW_SAFE
from decoding.model.seam import Seam
from decoding.weights.numbers.float_panels import has_panels

CPU = torch.device("cpu")


class Setting(NamedTuple):
    """Of a model. has_experts: mixtures of experts, which call our seam. has_states: layers that carry some."""

    dtype: torch.dtype
    has_experts: bool = False
    has_states: bool = False


Rules = list[Rule]
OfParts = Callable[[Setting], Rules]
OfLayers = Callable[[Seam], Rules]


class Parts(NamedTuple):
    """What stands for one form of a layer's parts, by column. None: the model's own code, or what it was read as."""

    cpu: OfParts | None = None
    device: OfParts | None = None


class Layers(NamedTuple):
    """The same for layers."""

    cpu: OfLayers
    device: OfLayers


def separating_rules(setting: Setting) -> Rules:
    """What comes before weights are rounded, so that an expert's are, too."""
    return [separating_rule(setting.dtype, _lacks_panels(setting.dtype))] if setting.has_experts else []


def _experts_on_cpu(setting: Setting) -> Rules:
    lacks = _lacks_panels(setting.dtype)
    if not setting.has_experts:
        return []
    rules = [together_rule(setting.dtype, lacks), routing_rule(setting.dtype, lacks)]
    return separating_rules(setting) + rules


def _experts_on_device(_setting: Setting) -> Rules:
    from decoding.model.experts.device_experts import packed_rule, whole_rule  # Triton may not be installed elsewhere

    return [whole_rule(), packed_rule()]


def _layers_on_cpu(seam: Seam) -> Rules:
    rooms: cpu_parts.AnyRooms = {}
    return [cpu_parts.layer_rule(seam, rooms), cpu_parts.mlp_rule(seam, rooms)]


def _layers_on_device(seam: Seam) -> Rules:
    from decoding.model.layers.device_parts import layer_rule  # as above

    return [layer_rule(seam)]


def _lacks_panels(dtype: torch.dtype) -> str:
    return "" if has_panels(CPU, dtype) else f"this processor multiplies no panels of {dtype}"


PARTS = {
    "experts and routers": Parts(cpu=_experts_on_cpu, device=_experts_on_device),
    "linear layers": Parts(cpu=lambda _: [packing_rule()]),
    "activations": Parts(cpu=lambda setting: [silu_rule(setting.dtype), ACTIVATIONS]),
    "rotary embeddings": Parts(cpu=lambda _: [ROTARIES]),
    "norms": Parts(cpu=lambda setting: [norm_rule(setting.dtype)]),
}
# Layers are made of what stands for their parts, and are tried on forwards that run these: they need a walk of their
# own. In a device's, what lies between the products is computed by the layer.
LAYERS = Layers(cpu=_layers_on_cpu, device=_layers_on_device)


def rules_on_cpu(setting: Setting) -> Rules:
    """Of layers' parts."""
    return _column([row.cpu for row in PARTS.values()], setting)


def rules_on_device(setting: Setting) -> Rules:
    """The same where Triton's kernels run."""
    return _column([row.device for row in PARTS.values()], setting)


def _column(makers: Sequence[OfParts | None], setting: Setting) -> Rules:
    return [rule for make in makers if make is not None for rule in make(setting)]


def functions_on_cpu(setting: Setting) -> Replacements:
    """The functions of torch that modelling code calls beside its modules, so that a token has the same bits in any
    company: mixtures' and states'."""
    functions: Replacements = {}
    if setting.has_experts or (setting.has_states and setting.dtype == torch.float32):
        functions |= linear_exact.REPLACED
    if setting.has_states:
        functions |= ROW_SAFE | activations.REPLACED
    return functions


def functions_on_device(is_row_exact: bool) -> Replacements:
    """The same for a device, where that is asked for."""
    if not is_row_exact:
        return {}
    from decoding.model.device.row_exact import REPLACED  # as above

    return REPLACED
