"""Routers in one call: the experts and shares of transformers' own, whatever other rows there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoding.model.experts.router import OTHER_LAW, OTHER_PARTS, FusedRouter, routing_rule
from decoding.model.replacing.replacer import replace
from tests.models import tiny

RULE = routing_rule(torch.float32, "")
ROUTED = {  # and what their laws need to tell them apart
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen2_moe": {"norm_topk_prob": False},
    "mixtral": {},
    "gpt_oss": {},
    "deepseek_v3": {"routed_scaling_factor": 2.5},
}


def routers_of(model_type: str, **overrides: Any) -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    model = tiny(model_type, **ROUTED[model_type] | overrides)
    routers = [each for each in model.modules() if type(each).__name__.endswith("Router")]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for router in routers:
            for tensor in (*router.parameters(), *router.buffers()):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model, routers


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("model_type", ROUTED)
def test_a_fused_router_chooses_what_transformers_does(model_type: str) -> None:
    model, routers = routers_of(model_type)
    rows = torch.randn(40, 64)
    with torch.inference_mode():
        logits, shares, chosen = routers[0](rows)
        (fused_routers,) = replace(model, [RULE]).forms
        assert len(fused_routers.stand_ins) == len(routers)
        fused = next(each for each in model.modules() if isinstance(each, FusedRouter))
        found_logits, found_shares, found_chosen = fused(rows)
        torch.testing.assert_close(found_logits, logits)
        order, found_order = chosen.argsort(1), found_chosen.argsort(1)
        assert torch.equal(found_chosen.gather(1, found_order), chosen.gather(1, order))
        torch.testing.assert_close(found_shares.gather(1, found_order), shares.gather(1, order).float())
        for start, count in ((0, 1), (7, 2), (20, 17)):
            part = slice(start, start + count)
            found = fused(rows[part])
            assert torch.equal(found[1], found_shares[part])
            assert torch.equal(found[2], found_chosen[part])


def test_of_equal_experts_the_first_is_chosen_and_no_expert_twice() -> None:
    model, _ = routers_of("qwen3_moe")
    replace(model, [RULE])
    fused = next(each for each in model.modules() if isinstance(each, FusedRouter))
    with torch.inference_mode():
        _, shares, chosen = fused(torch.zeros(3, 64))
    assert chosen.tolist() == [[0, 1]] * 3
    assert shares.tolist() == [[0.5, 0.5]] * 3


def test_routers_with_another_law_stay_as_they_are() -> None:
    model, _ = routers_of("deepseek_v3", n_group=2, topk_group=1)
    assert replace(model, [RULE]).reasons == (OTHER_PARTS,)
    model, routers = routers_of("mixtral")
    own = type(routers[0])
    for router in routers:
        router.__class__ = type(
            own.__name__,
            (own,),
            {"forward": lambda self, rows: (lambda a, b, c: (a, b * b, c))(*own.forward(self, rows))},
        )
    assert replace(model, [RULE]).reasons == (OTHER_LAW,)
