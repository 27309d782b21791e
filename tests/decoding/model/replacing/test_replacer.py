"""One walk over a model by rules: what stands, what stays, in which order, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from decoding.config import EngineConfig
from decoding.errors import PartRefused
from decoding.model.replacing.replacer import OTHER_FORM, Calls, Place, Replaced, Report, Rule, check_same, replace
from decoding.model.target_model import TargetModel
from tests.models import tiny


class Stand(nn.Module):
    """Holds what it stands for, in which nothing is looked for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def is_a(kind: type[nn.Module]) -> Callable[[Place], bool]:
    return lambda place: isinstance(place.module, kind)


def stands(place: Place) -> list[Stand]:
    return [Stand(place.module)]


def kinds(model: nn.Module) -> list[str]:
    return [type(each).__name__ for each in model.modules()]


def test_every_module_of_a_form_is_replaced_and_what_stands_is_not_looked_into() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    report = replace(model, [Rule("linear layers", is_a(nn.Linear), stands), Rule("others", is_a(nn.ReLU), stands)])
    assert kinds(model) == ["Sequential", "Stand", "Linear", "Sequential", "Stand", "Linear", "Stand", "ReLU"]
    assert str(report) == "2 of 2 linear layers; 1 of 1 others"


def test_a_whole_stands_before_its_parts_which_are_then_left_alone() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1))
    report = replace(model, [Rule("layers", is_a(nn.Sequential), stands), Rule("parts", is_a(nn.Linear), stands)])
    assert str(report) == "1 of 1 layers; 1 of 1 parts"
    assert kinds(model[0]) == ["Stand", "Sequential", "Linear"]


def test_the_first_that_passes_its_trial_stands_and_the_next_rule_is_asked_where_none_does() -> None:
    def candidates(_place: Place) -> Iterator[str]:
        yield from ("one", "two", "three")

    def check(candidate: str, place: Place, _calls: Calls) -> None:
        if candidate != place.name:
            raise PartRefused(f"it is not {place.name}")

    put: dict[str, str] = {}
    model = nn.ModuleDict({name: nn.ReLU() for name in ("two", "four", "five")})
    by_name = Rule("names", is_a(nn.ReLU), candidates, check, lambda place, found: put.update({place.name: found}))
    report = replace(model, [by_name, Rule("others", lambda place: place.name == "five", stands)])
    assert put == {"two": "two"}
    assert kinds(model) == ["ModuleDict", "ReLU", "ReLU", "Stand", "ReLU"]
    assert str(report) == "1 of 3 names (others are not: it is not five, it is not four); 1 of 1 others"


def test_what_a_rule_lacks_is_why_nothing_stands() -> None:
    model = nn.Sequential(nn.ReLU())
    rule = Rule("panels", is_a(nn.ReLU), stands, lacks="this processor has none")
    assert replace(model, [rule]).forms == (Replaced("panels", 1, (), ("this processor has none",)),)
    assert replace(nn.Sequential(), [rule]).reasons == ()
    assert replace(model, [Rule("none", is_a(nn.ReLU), lambda _place: [])]).reasons == (OTHER_FORM,)


@pytest.mark.parametrize("fails", [False, True])
def test_where_all_must_stand_one_that_fails_leaves_all(fails: bool) -> None:
    def stand_ins(place: Place) -> list[Stand]:
        if fails and place.name == "1":
            raise PartRefused("it is the second")
        return stands(place)

    model, finished = nn.Sequential(nn.ReLU(), nn.ReLU()), list[Any]()
    rule = Rule("all", is_a(nn.ReLU), stand_ins, finish=finished.extend, are_all=True)
    report = replace(model, [rule])
    assert kinds(model).count("Stand") == len(report.forms[0].stand_ins) == len(finished) == (0 if fails else 2)
    assert report.reasons == (("it is the second",) if fails else ())


def test_a_module_that_only_something_is_bound_to_is_looked_into_with_what_was_added() -> None:
    def put(place: Place, added: nn.Module) -> None:
        place.module.add_module("added", added)

    model = nn.Sequential(nn.Sequential())
    binding = Rule("bound", lambda place: place.name == "0", lambda _place: [nn.Linear(1, 1)], put=put)
    report = replace(model, [binding, Rule("linear layers", is_a(nn.Linear), stands)])
    assert str(report) == "1 of 1 bound; 1 of 1 linear layers"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (torch.ones(2), None),
        (torch.ones(3), "it gives results of shape (3,) instead of (2,)"),
        (torch.full((2,), 1.5), "it gives results that differ by 0.5 of the largest"),
        (torch.full((2,), torch.nan), "it gives results that differ by nan of the largest"),
    ],
)
def test_results_are_the_same_up_to_rounding_or_a_sentence_says_how_they_differ(
    found: torch.Tensor, reason: str | None
) -> None:
    if reason is None:
        check_same(lambda: torch.ones(2), lambda: found)
        return
    with pytest.raises(PartRefused) as raised:
        check_same(lambda: torch.ones(2), lambda: found)
    assert str(raised.value) == reason


def test_a_model_says_in_one_line_what_stands_for_it() -> None:
    told: list[str] = []
    config = EngineConfig(attention="exact", max_model_len=64, threads=1)
    model = TargetModel(tiny("llama").eval(), config, lambda sentence, _: told.append(sentence))
    count = len(model.layers)
    assert str(model.replaced) in told
    assert str(model.replaced) == (
        f"{count} of {count} calls of attention answered; {7 * count + 1} of {7 * count + 1} linear layers packed; "
        f"{count} of {count} SiLU modules fused; 1 of 1 rotary tables kept; {2 * count + 1} of {2 * count + 1} norms "
        f"fused; {count} of {count} layers fused; 1 of 1 model in one call"
    )
    assert str(Report()) == "nothing is replaced"
