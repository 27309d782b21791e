"""Replaces modules of a transformers model, by rules: one walk for all of them, one report, one refusal.

A rule says which form of module it knows, what may stand for one, what that needs and how it is tried. Every room has
its own, and `rules.py` beside this file is the table of them. Knows no rule. Invariant: a module for which nothing
passes its trial stays as it is, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from decoding.cache.batch import StepBatch
from decoding.errors import PartRefused, listed
from decoding.model.refusal import is_device_error, sentence

OTHER_FORM = "it has other parts, or is called otherwise, than modules of this form"
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # as a share of the largest number
Run = Callable[[StepBatch], torch.Tensor]


class Place(NamedTuple):
    """A module by its name in its parent."""

    parent: Any
    name: str
    module: nn.Module


class Call(NamedTuple):
    """One call of a module in a model's own forward of a step, and its result."""

    batch: StepBatch
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: Any


class Forwards(NamedTuple):
    """What modules are tried in. run: the model's forward. batches: steps of different numbers of tokens."""

    run: Run
    batches: Sequence[StepBatch]


Calls = Sequence[Call]  # of one module, in each of the batches


def _unchecked(_stand_in: Any, _place: Place, _calls: Calls) -> None:
    """Of what computes the same by its kind."""


def _replace(place: Place, stand_in: Any) -> None:
    setattr(place.parent, place.name, stand_in)


def _leave(_stand_ins: list[Any]) -> None:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What stands for the modules of one form.

    what: names them in a report, with what becomes of them. has_form: whether a module may have the form, by its class
    or by the names of its parts. stand_ins: what may stand for it, the likeliest first, still to be tried; raises
    PartRefused. check: tries one on a few rows, or on the calls of a forward; raises PartRefused where it computes
    something else. put: has it stand there, in the module's place or bound to the module. finish: given all that were
    put. lacks: what is needed for it and not here, in words. are_all: none is put unless all can be.
    """

    what: str
    has_form: Callable[[Place], bool]
    stand_ins: Callable[[Place], Iterable[Any]]
    check: Callable[[Any, Place, Calls], None] = _unchecked
    put: Callable[[Place, Any], None] = _replace
    finish: Callable[[list[Any]], None] = _leave
    lacks: str = ""
    are_all: bool = False


class Replaced(NamedTuple):
    """What became of the modules of one form. reasons: why nothing stands for some, each once."""

    what: str
    num_found: int
    stand_ins: tuple[Any, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f" (others are not: {listed(self.reasons)})" if self.reasons else ""
        return f"{len(self.stand_ins)} of {self.num_found} {self.what}{why}"


@dataclass(frozen=True, slots=True)
class Report:
    """In the order of the rules. Its words are one line: "24 of 24 layers fused; 169 of 169 linear layers packed"."""

    forms: tuple[Replaced, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report(self.forms + other.forms)

    def __str__(self) -> str:
        return "; ".join(str(each) for each in self.forms if each.num_found) or "nothing is replaced"

    def stand_ins(self, what: str) -> tuple[Any, ...]:
        """Those of the rules of this name."""
        return tuple(stand_in for each in self.forms if each.what == what for stand_in in each.stand_ins)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why modules stay as they are, each once."""
        return tuple(dict.fromkeys(reason for each in self.forms for reason in each.reasons))


def replace(model: nn.Module, rules: Sequence[Rule], forwards: Forwards | None = None) -> Report:
    """Replace what is in `model` by the first of the rules for each module of which something passes its trial.

    forwards: of the model, for rules that try on its own calls. Rules whose stand-ins are made of other rules' need a
    call of their own, since the forwards that they are tried in run those.
    """
    tallies, calls = [_Tally(rule) for rule in rules], dict[nn.Module, Calls]()
    if forwards is not None:
        found = [each.module for each in places(model) if any(rule.has_form(each) for rule in rules)]
        calls = _calls_of(found, forwards)
    for place in places(model):
        any(tally.try_at(place, calls.get(place.module, ())) for tally in tallies if tally.rule.has_form(place))
    return Report(tuple(tally.settled() for tally in tallies))


def places(model: nn.Module) -> Iterator[Place]:
    """Everything in `model`, parents before what is in them. A module that is replaced meanwhile is not looked into,
    and neither is what took its place."""
    return _places(model, {model})


def _places(parent: nn.Module, seen: set[nn.Module]) -> Iterator[Place]:
    children = list(parent.named_children())
    for name, child in children:
        yield Place(parent, name, child)
    for name, child in children:
        if parent._modules.get(name) is child and child not in seen:
            seen.add(child)
            yield from _places(child, seen)


def replace_one(place: Place, rule: Rule) -> Report:
    """The same for one module, which may be a whole model, and its place an attribute of any object."""
    tally = _Tally(rule)
    tally.try_at(place, ())
    return Report((tally.settled(),))


@dataclass(slots=True)
class _Tally:
    """What a walk did by one rule."""

    rule: Rule
    num_found: int = 0
    placed: list[tuple[Place, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def try_at(self, place: Place, calls: Calls) -> bool:
        """Whether something stands for the module now, or will."""
        self.num_found += 1
        try:
            stand_in = _first_that_passes(self.rule, place, calls)
        except PartRefused as refused:
            self.reasons.append(str(refused))
            return False
        self.placed.append((place, stand_in))
        if not self.rule.are_all:
            self.rule.put(place, stand_in)
        return True

    def settled(self) -> Replaced:
        """Once the walk is over."""
        if self.rule.are_all:
            self.placed = [] if self.reasons else self.placed
            for place, stand_in in self.placed:
                self.rule.put(place, stand_in)
        stand_ins = [stand_in for _, stand_in in self.placed]
        if stand_ins:
            self.rule.finish(stand_ins)
        return Replaced(self.rule.what, self.num_found, tuple(stand_ins), tuple(dict.fromkeys(self.reasons)))


def _first_that_passes(rule: Rule, place: Place, calls: Calls) -> Any:
    """Raises PartRefused where nothing does, with the last reason."""
    if rule.lacks:
        raise PartRefused(rule.lacks)
    refusal = PartRefused(OTHER_FORM)
    for stand_in in rule.stand_ins(place):
        try:
            rule.check(stand_in, place, calls)
        except PartRefused as refused:
            refusal = refused
        else:
            return stand_in
    raise refusal


def _calls_of(modules: Sequence[nn.Module], forwards: Forwards) -> dict[nn.Module, Calls]:
    """Each module's call in a forward of each batch; none of a module that some forward does not call, or that gives no
    tensor."""
    calls = {module: list[Call]() for module in modules}
    for batch in forwards.batches:
        seen: dict[nn.Module, Call] = {}

        def note(
            module: nn.Module,
            arguments: tuple[Any, ...],
            named: dict[str, Any],
            result: Any,
            batch: StepBatch = batch,
            seen: dict[nn.Module, Call] = seen,
        ) -> None:
            if isinstance(result, torch.Tensor):
                seen[module] = Call(batch, arguments, named, result)

        hooks = [module.register_forward_hook(note, with_kwargs=True) for module in calls]
        forwards.run(batch)
        for hook in hooks:
            hook.remove()
        for module in calls:
            calls[module] += [seen[module]] if module in seen else []
    return {module: each for module, each in calls.items() if len(each) == len(forwards.batches)}


def check_same(own: Callable[[], torch.Tensor], found: Callable[[], torch.Tensor]) -> None:
    """Raise PartRefused where two computations have different results, up to rounding, and what a device raises."""
    try:
        expected, result = own(), found()
    except Exception as error:  # a kernel that does not compile, or modelling code that wants other arguments
        if is_device_error(error):
            raise
        raise PartRefused(sentence(error)) from error
    if expected.shape != result.shape:
        raise PartRefused(f"it gives results of shape {tuple(result.shape)} instead of {tuple(expected.shape)}")
    difference = float((result - expected).abs().max() / expected.abs().max())
    if not difference <= TOLERANCES[result.dtype]:
        raise PartRefused(f"it gives results that differ by {difference:.2g} of the largest")


Replacements = dict[Callable[..., Any], Callable[..., torch.Tensor | None]]


class ReplacedFunctions(TorchFunctionMode):
    """Functions of torch that modelling code calls by name, replaced for the time of a forward.

    Inside this mode the functions of a table are answered by their replacements; nothing else changes. A replacement
    has its function's arguments, and returns None for a call that it leaves to the function. A forward enters one mode,
    since what a mode costs is paid at every call.
    """

    def __init__(self, table: Replacements) -> None:
        super().__init__()
        self._table = table

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        replacement, named = self._table.get(func), kwargs or {}
        found = None if replacement is None else replacement(*args, **named)
        return func(*args, **named) if found is None else found
