"""Tiny checkpoints with MTP tensors, and what the published modelling code says of them, in plain PyTorch.

The target is near to a table of successors and its module near to the same table, so drafts are accepted often but not
always, and nothing has to be trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tests.gguf_files import NAMES, tensors_of, write_gguf
from tests.models import tiny

FAMILIES = ("deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "mimo")
ADDING = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")  # to the residual stream
NOISE = 0.15
ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
OF_DEEPSEEK = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
OF_QWEN = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "norm": "norm"}
OF_MIMO = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "norm": "final_layernorm",
}
Tensors = dict[str, torch.Tensor]


class MiMoConfig(Qwen2Config):
    """As the model's own code has it, which transformers has not."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):
    config_class = MiMoConfig
    config: MiMoConfig


AutoConfig.register("mimo", MiMoConfig)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM)


@dataclass(frozen=True)
class Mtp:
    """model: the target. module: a model of the same type whose one layer and last norm are the MTP module's. joining:
    what goes before that layer, named as DeepSeek does."""

    model: PreTrainedModel
    module: PreTrainedModel
    joining: Tensors

    @property
    def is_qwen(self) -> bool:
        return self.model.config.model_type.startswith("qwen")

    @property
    def is_mimo(self) -> bool:
        return bool(self.model.config.model_type == "mimo")

    def norm(self, rows: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        """RMSNorm; Qwen's weights are distances from one."""
        variance = rows.float().pow(2).mean(-1, keepdim=True)
        scale_E = 1 + weight_E if self.is_qwen else weight_E
        return rows * torch.rsqrt(variance + self.model.config.rms_norm_eps) * scale_E

    @torch.no_grad()
    def depth(self, next_ids_1N: torch.Tensor, hidden_1NE: torch.Tensor) -> torch.Tensor:
        """[1, N, E]: what a run of the module makes of hidden states and the tokens after them."""
        model, module, num_rows = self.model.model, self.module.model, next_ids_1N.shape[1]
        embedded = self.norm(model.embed_tokens(next_ids_1N), self.joining["enorm"])
        hidden = self.norm(hidden_1NE, self.joining["hnorm"])
        both = [hidden, embedded] if self.is_mimo else [embedded, hidden]
        joined = functional.linear(torch.cat(both, dim=-1), self.joining["eh_proj"])
        positions_1N = torch.arange(num_rows)[None]
        result = module.layers[0](
            joined,
            position_embeddings=module.rotary_emb(joined, positions_1N),
            attention_mask=torch.full((1, 1, num_rows, num_rows), float("-inf")).triu(1),
            position_ids=positions_1N,
        )
        return self.norm(result, module.norm.weight)

    @torch.no_grad()
    def says(self, tokens: NDArray[np.int32]) -> Iterator[torch.Tensor]:
        """Logits [V] along the module's own chain after these tokens: everything again for each of them."""
        ids_1N = torch.from_numpy(tokens)[None].long()
        hidden_1NE = self.known(ids_1N)[:, :-1]  # of the root itself nothing is known
        while True:
            output_1NE = self.depth(ids_1N[:, 1:], hidden_1NE)
            logits_V = self.model.lm_head(output_1NE[0, -1])
            yield logits_V
            ids_1N = torch.cat([ids_1N, logits_V.argmax()[None, None]], dim=1)
            hidden_1NE = torch.cat([hidden_1NE, output_1NE[:, -1:]], dim=1)

    def shortfalls(self, tokens: NDArray[np.int32], chain: list[int]) -> Iterator[float]:
        """Of the module's own chain after these tokens, for each token of `chain` the best logit less its own."""
        for token, logits_V in zip(chain, self.says(tokens), strict=False):
            yield float(logits_V.max() - logits_V[token])

    @torch.no_grad()
    def known(self, ids_1N: torch.Tensor) -> torch.Tensor:
        """[1, N, E]: what the target's output layer reads, after the last norm."""
        hidden_1NE: torch.Tensor = self.model.model(input_ids=ids_1N, use_cache=False).last_hidden_state
        return hidden_1NE

    def tensors(self) -> Tensors:
        """The module's, as checkpoints have them: experts one by one, some with the target's embeddings again."""
        with TemporaryDirectory() as folder:
            self.module.save_pretrained(folder)
            own = load_file(Path(folder) / "model.safetensors")
        first = "model.mtp_layers.0." if self.is_mimo else f"model.layers.{self.model.config.num_hidden_layers}."
        layer, others, names = first, first, OF_MIMO if self.is_mimo else OF_DEEPSEEK
        if self.is_qwen:
            layer, others, names = "mtp.layers.0.", "mtp.", OF_QWEN
        tensors = {
            name.replace("model.layers.0.", layer): tensor
            for name, tensor in own.items()
            if name.startswith("model.layers.0.")
        }
        extra = self.joining | {"norm": self.module.model.norm.weight.detach()}
        tensors |= {f"{others}{names[name]}.weight": tensor for name, tensor in extra.items()}
        if names is OF_DEEPSEEK:
            embeddings, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
            tensors[f"{first}embed_tokens.weight"] = embeddings.weight.detach()
            tensors[f"{first}shared_head.head.weight"] = output.weight.detach()
        return tensors

    def write(self, folder: Path, **changes: torch.Tensor | None) -> Path:
        """A checkpoint. changes: tensors by name, over the module's; None leaves one out."""
        self.model.save_pretrained(folder)
        file = folder / "model.safetensors"
        tensors = load_file(file) | self.tensors() | changes
        kept = {name: tensor.clone().contiguous() for name, tensor in tensors.items() if tensor is not None}
        save_file(kept, file, metadata={"format": "pt"})
        return folder

    def write_gguf(self, path: Path, kind: str = "F32", **changes: np.ndarray | None) -> Path:
        """A GGUF file of a Qwen, as llama.cpp's converter writes it. changes: as of `write`, by the file's names."""
        config, architecture = self.model.config, NAMES[self.model.config.model_type]
        block = f"blk.{config.num_hidden_layers}."
        tensors = {
            name.replace("blk.0.", block): numbers
            for name, numbers in tensors_of(self.module, architecture).items()
            if name.startswith("blk.0.")
        }
        around = {"enorm": self.joining["enorm"] + 1, "hnorm": self.joining["hnorm"] + 1}
        around |= {"eh_proj": self.joining["eh_proj"], "shared_head_norm": self.module.model.norm.weight.detach() + 1}
        around |= {"shared_head_head": self.model.lm_head.weight.detach()}
        tensors |= {f"{block}nextn.{name}.weight": each.numpy().copy() for name, each in around.items()}
        more = {name: each for name, each in (tensors | changes).items() if each is not None}
        counts = {"block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}
        metadata = {f"{architecture}.{name}": count for name, count in counts.items()}
        return write_gguf(path, self.model, kind, metadata, more=more)


def mtp_of(model_type: str, **fields: Any) -> Mtp:
    """fields: of the target's configuration and the module's."""
    model = tiny(model_type, **fields)
    changes = ONE_LAYER | fields
    if getattr(model.config, "layer_types", None) is not None:
        changes["layer_types"] = ["full_attention"]
    if hasattr(model.config, "first_k_dense_replace"):
        changes["first_k_dense_replace"] = 0
    module = tiny(model_type, seed=1, **changes)
    width, generator = model.config.hidden_size, torch.Generator().manual_seed(2)

    def noise(*shape: int) -> torch.Tensor:
        return NOISE * torch.randn(shape, generator=generator)

    with torch.no_grad():
        for each in (model, module):
            for name, parameter in each.named_parameters():
                if name.endswith(ADDING):
                    parameter.mul_(NOISE)
        norm_E = model.model.norm.weight
        norm_E.add_(3 * noise(width))
        module.model.norm.weight.copy_(norm_E + noise(width))
    one = 0.0 if model_type.startswith("qwen") else 1.0
    joining = {
        "enorm": one + noise(width),
        "hnorm": one + noise(width),
        "eh_proj": torch.cat([torch.eye(width), noise(width, width)], dim=1),
    }
    if model_type == "mimo":
        joining["eh_proj"] = joining["eh_proj"].roll(width, dims=1)
    return Mtp(model, module, joining)
