"""Tiny EAGLE-3 heads for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import PreTrainedModel

from decoding.core.request import Request
from decoding.core.tree import DraftTree
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.dynamic import ModelDrafter, linear_rules
from decoding.drafting.eagle.head_config import default_feature_layers, read_config
from decoding.drafting.eagle.network import EagleHead
from decoding.drafting.sources import Sources
from tests.models import VOCAB_SIZE, tiny

LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB_SIZE,
}
NUM_LAYERS = 3  # of the tiny targets
NUM_TEXTS, TEXT_LEN, NUM_UPDATES = 128, 48, 250


class Recorder(ModelDrafter):
    """Chains, and what was known when each was drafted."""

    def __init__(self, request: Request, sources: Sources) -> None:
        assert sources.state is not None
        super().__init__(request, sources.state, linear_rules(request.speculation))
        self._tokens = request
        self.seen: list[tuple[NDArray[np.int32], DraftTree]] = []

    def propose(self, budget: DraftBudget) -> DraftTree:
        tree = super().propose(budget)
        self.seen.append((self._tokens.tokens.copy(), tree))
        return tree


def attend_causally(query_BHND: torch.Tensor, key_BKND: torch.Tensor, value_BKND: torch.Tensor) -> torch.Tensor:
    """Every row to the rows before it and itself."""
    out_BHND = functional.scaled_dot_product_attention(
        query_BHND, key_BKND, value_BKND, is_causal=True, enable_gqa=True
    )
    return out_BHND.transpose(1, 2)


def fields_of(**changes: Any) -> dict[str, Any]:
    """config.json in EAGLE's layout; a change to None takes the field away."""
    fields = {"architectures": ["LlamaForCausalLMEagle3"], **LAYER, "draft_vocab_size": 120, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def new_head(embeddings_VE: torch.Tensor, fields: dict[str, Any] | None = None, seed: int = 0) -> EagleHead:
    """Random weights; its draft vocabulary leaves out tokens of the beginning, the middle and the end."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        config = read_config(fields or fields_of(), NUM_LAYERS)
        head = EagleHead(config, embeddings_VE)
        if config.draft_vocab_size < config.vocab_size:
            head.use_vocabulary(torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values)
    finally:
        torch.set_rng_state(state)
    return head


def features_of(model: PreTrainedModel, ids_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of transformers' own forward: [B, N, F], what a head is fed with, and the logits [B, N, V]."""
    layers = default_feature_layers(model.config.num_hidden_layers)
    found: dict[int, torch.Tensor] = {}
    decoder = next(module for module in model.modules() if hasattr(module, "layers"))
    hooks = [
        decoder.layers[layer - 1].register_forward_hook(
            lambda _module, _inputs, output, layer=layer: found.__setitem__(
                layer, output[0] if isinstance(output, tuple) else output
            )
        )
        for layer in layers
    ]
    with torch.no_grad():
        logits_BNV = model(input_ids=ids_BN, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.cat([found[layer] for layer in layers], dim=-1), logits_BNV


@cache
def trained_head(model_type: str) -> EagleHead:
    """A head that has followed the tiny target's own replies for some seconds, over three depths. To be copied."""
    model = tiny(model_type)
    generator = torch.Generator().manual_seed(0)
    ids_BN = replies_of(model, generator)
    features_BNF, logits_BNV = features_of(model, ids_BN)
    embeddings_VE = model.get_input_embeddings().weight
    head = new_head(embeddings_VE, fields_of(draft_vocab_size=150))
    trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    targets_BNW = logits_BNV[:, :, head.target_ids].log_softmax(dim=-1)
    for _ in range(NUM_UPDATES):
        chosen = torch.randint(len(ids_BN), (16,), generator=generator)
        loss = _loss(head, ids_BN[chosen], features_BNF[chosen], targets_BNW[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


def replies_of(model: PreTrainedModel, generator: torch.Generator) -> torch.Tensor:
    """[B, N]: random beginnings and what the model goes on with, half of them greedily."""
    ids_BN = torch.randint(3, VOCAB_SIZE, (NUM_TEXTS, 8), generator=generator)
    for _ in range(TEXT_LEN - 8):
        with torch.no_grad():
            logits_BV = model(input_ids=ids_BN, use_cache=False).logits[:, -1]
        drawn_B = torch.multinomial((logits_BV / 0.8).softmax(dim=-1), 1, generator=generator)[:, 0]
        greedy = torch.arange(NUM_TEXTS) % 2 == 0
        ids_BN = torch.cat([ids_BN, torch.where(greedy, logits_BV.argmax(dim=-1), drawn_B)[:, None]], dim=1)
    return ids_BN


def _loss(head: EagleHead, ids_BN: torch.Tensor, features_BNF: torch.Tensor, targets_BNW: torch.Tensor) -> torch.Tensor:
    """Cross entropy of every depth; each depth attends to its own rows, which is near enough here."""
    hidden_BNE, total = head.fuse(features_BNF), torch.zeros(())
    positions_BN = torch.arange(ids_BN.shape[1]).expand_as(ids_BN)
    for depth in range(1, 4):
        num_rows = ids_BN.shape[1] - depth
        hidden_BNE = head(ids_BN[:, depth:], hidden_BNE[:, :num_rows], positions_BN[:, :num_rows], attend_causally)
        said_BNW = head.logits(hidden_BNE).log_softmax(dim=-1)
        total = total - (targets_BNW[:, depth:].exp() * said_BNW).sum(dim=-1).mean()
    return total
