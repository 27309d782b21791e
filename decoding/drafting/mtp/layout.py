"""Where checkpoints keep an MTP module, and which of its two inputs comes first, by type of model.

Knows names only. Invariant: a tensor's own name is that of `MtpHead`, or of a model with one layer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LAYER = "layers.0."
EMBEDDING_NORM, HIDDEN_NORM = "pre_fc_norm_embedding.", "pre_fc_norm_hidden."
UNUSED = re.compile(r"(^|\.)(embed_tokens|shared_head[._]head|rotary_emb)\.")  # the target's, or made anew
ANY_MODULE = re.compile(r"(^|\.)(mtp|nextn|eh_proj)(\.|_)")  # of a family that may not be known here


class Layout(NamedTuple):
    """prefix: a pattern of what the names of the first module's tensors begin with; {layer}: the number of layers.
    names: own names by those of the files, of what is not in the decoder layer; layer: what the others begin with.
    is_hidden_first: the hidden state goes before the embedding."""

    prefix: str
    names: dict[str, str]
    layer: str = ""
    is_hidden_first: bool = False

    def own_name(self, name: str, num_layers: int) -> str | None:
        """None for a tensor that is no part of the first module, or that the target has."""
        found = re.match(self.prefix.format(layer=num_layers), name)
        if found is None or UNUSED.search(name):
            return None
        rest = name[found.end() :]
        for theirs, own in self.names.items():
            if rest.startswith(theirs):
                return own + rest.removeprefix(theirs)
        return LAYER + rest.removeprefix(self.layer) if rest.startswith(self.layer) else None

    def file_name(self, own: str) -> str:
        """A tensor's name in the files, without what goes before it."""
        for theirs, name in self.names.items():
            if own.startswith(name):
                return theirs + own.removeprefix(name)
        return self.layer + own.removeprefix(LAYER)


DEEPSEEK = Layout(
    prefix=r"(?:model\.|language_model\.)*layers\.{layer}\.",
    names={"eh_proj.": "fc.", "enorm.": EMBEDDING_NORM, "hnorm.": HIDDEN_NORM, "shared_head.norm.": "norm."},
)
QWEN = Layout(
    prefix=r"mtp\.",
    names={each: each for each in ("fc.", EMBEDDING_NORM, HIDDEN_NORM, "norm.")},
    layer=LAYER,
)
MIMO = Layout(
    prefix=r"model\.mtp_layers\.0\.",
    names={
        "input_proj.": "fc.",
        "token_layernorm.": EMBEDDING_NORM,
        "hidden_layernorm.": HIDDEN_NORM,
        "final_layernorm.": "norm.",
    },
    is_hidden_first=True,
)
GGUF = Layout(  # of all types; layers by the names of a model with one
    prefix=r"(?:model\.)?",
    names={
        "nextn.eh_proj.": "fc.",
        "nextn.enorm.": EMBEDDING_NORM,
        "nextn.hnorm.": HIDDEN_NORM,
        "nextn.shared_head_norm.": "norm.",
    },
    layer=LAYER,
)
LAYOUTS = {
    "deepseek_v3": DEEPSEEK,
    "glm4_moe": DEEPSEEK,
    "mimo": MIMO,
    "qwen3_next": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_5_moe_text": QWEN,
}
