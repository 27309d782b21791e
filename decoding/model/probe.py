"""The probe: one short forward at load that finds every layer's shape, mask and state, and refuses some models.

Some models tell a layer's window only in the mask that they request, so the probe answers mask requests with tags
and reads the tags where attention is called.
Invariant: in a model that passes, each layer that attends calls the attention interface once, and one that does not
calls a function by whose name its state is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from decoding.core.layer import LayerSpec
from decoding.errors import ModelRefused, PartRefused
from decoding.model.refusal import is_device_error
from decoding.model.seam import AttentionCall, MaskTag, observed
from decoding.model.state.sites import Names, Site

PROBE_LEN = 3
UNKNOWN_OPTIONS = ("position_bias", "sinks")  # of attention, which change its result and no kernel here computes


class Probed(NamedTuple):
    """layers: every attention module with its `LayerSpec`. sites: where layers carry a state. Both in calling order."""

    layers: list[tuple[nn.Module, LayerSpec]]
    sites: list[Site]


def probe(model: PreTrainedModel, names: Names) -> Probed:
    """What the model's layers are. names: of its sites. Raises ModelRefused with the reason."""
    recorder = _Recorder()
    vocab_size = model.get_input_embeddings().num_embeddings
    ids_1N = torch.arange(PROBE_LEN, device=model.device)[None] % vocab_size
    positions_1N = torch.arange(PROBE_LEN, device=model.device)[None]
    try:
        try:
            with observed(model, recorder), names.recorded() as sites, torch.inference_mode():
                model(input_ids=ids_1N, position_ids=positions_1N, use_cache=False)
        except Exception as error:  # modelling code may raise anything; the caller needs one sentence
            if is_device_error(error):
                raise
            raise PartRefused(_cause_of(error)) from error
        _check_calls(model, recorder, sites)
    except PartRefused as refused:  # of parts that the model's own code cannot be left to
        raise ModelRefused(f"{model.config.model_type} cannot be served: {refused}") from refused
    return Probed(recorder.layers, sites)


def _cause_of(error: Exception) -> str:
    cause = f"{type(error).__name__}: {error}"
    if MaskTag.__name__ in cause:
        cause = "it computes with the masks that it asks for"
    return f"its forward does not run through the attention interface ({cause})"


def _check_calls(model: PreTrainedModel, recorder: _Recorder, sites: list[Site]) -> None:
    num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", len(recorder.layers))
    if not recorder.layers and not sites:
        raise PartRefused("no layer calls transformers' attention interface")
    if recorder.unknown:
        raise PartRefused(f"its attention has {' and '.join(recorder.unknown)}, which no kernel here computes")
    if recorder.repeated:
        raise PartRefused(
            "a layer attends more than once per forward, so its keys and values have no single place per token"
        )
    if len(recorder.layers) < num_layers and not sites:
        raise PartRefused(
            f"only {len(recorder.layers)} of its {num_layers} layers attend; the others carry a state in a way of "
            "their own, which a tree of candidates would mix up"
        )


class _Recorder:
    """An observer that records each layer's `LayerSpec` and answers with plain causal attention."""

    def __init__(self) -> None:
        self.layers: list[tuple[nn.Module, LayerSpec]] = []
        self.repeated = False
        self.unknown: list[str] = []  # options

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        if any(module is call.module for module, _ in self.layers):
            self.repeated = True
        else:
            self.layers.append((call.module, _layer_spec(len(self.layers), call)))
        self.unknown = self.unknown or [name for name in UNKNOWN_OPTIONS if call.options.get(name) is not None]
        group = call.query_1HND.shape[1] // call.key_1KND.shape[1]
        out_1HNV = F.scaled_dot_product_attention(
            call.query_1HND,
            call.key_1KND.repeat_interleave(group, 1),
            call.value_1KNV.repeat_interleave(group, 1),
            is_causal=True,
            scale=call.options.get("scaling"),
        )
        return out_1HNV.transpose(1, 2).contiguous()


def _layer_spec(index: int, call: AttentionCall) -> LayerSpec:
    tag = call.mask if isinstance(call.mask, MaskTag) else None
    options: dict[str, Any] = call.options
    width = call.query_1HND.shape[-1]
    window = tag.size if tag is not None and tag.kind == "sliding" else 0
    if tag is None:
        window = options.get("sliding_window") or 0
    scaling = options.get("scaling")
    sinks = options.get("s_aux")
    return LayerSpec(
        index=index,
        num_query_heads=call.query_1HND.shape[1],
        num_kv_heads=call.key_1KND.shape[1],
        key_dim=call.key_1KND.shape[-1],
        value_dim=call.value_1KNV.shape[-1],
        scaling=width**-0.5 if scaling is None else float(scaling),
        window=int(window),
        chunk=tag.size if tag is not None and tag.kind == "chunked" else 0,
        softcap=float(options.get("softcap") or 0.0),
        sinks=None if sinks is None else sinks.detach(),
    )
