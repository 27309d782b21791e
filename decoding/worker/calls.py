"""Requests on their way to the worker: those of one HTTP call travel as one message, what they have in common once.

Invariant: a request that arrives is the one that was sent, and those of a call share their lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from decoding.core.picture import Picture
from decoding.core.pooling import Pooling
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams

_ENCODER = msgspec.msgpack.Encoder()


class Submit(msgspec.Struct, kw_only=True, frozen=True):
    """Run a request.

    prediction holds the token ids of the text that the caller expects the reply to be. resumed holds the tokens of the
    reply that a worker gave before it died; the reply goes on after them. pictures are the prompt's. call_id names the
    HTTP call. weight is the tenant's against others; a request of lower priority goes first. pooling asks for the
    prompt's embedding instead of a reply.
    """

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    speculation: SpeculationParams
    tenant: str = ""
    cache_salt: str = ""
    session_id: str = "local"
    call_id: str = ""
    weight: float = 1.0
    priority: int = 0
    pooling: Pooling | None = None
    prediction: list[int] = []
    resumed: list[int] = []
    pictures: list[Picture] = []


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """What a request has of its own. prompt: its place among those of `Shared`."""

    request_id: str
    prompt: int
    prompt_len: int
    max_tokens: int
    seed: int
    resumed: list[int]


class Shared(msgspec.Struct, kw_only=True, frozen=True):
    """What the requests of a call have in common. predictions, pictures: of the prompt in the same place. The
    rest is of `Submit`; each choice has its own length and seed."""

    prompts: list[list[int]]
    predictions: list[list[int]]
    pictures: list[list[Picture]]
    sampling: SamplingParams
    speculation: SpeculationParams
    cache_salt: str
    session_id: str
    call_id: str
    weight: float
    priority: int
    pooling: Pooling | None


class Call(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Run these requests of one tenant. shared: a `Shared`, encoded, to be read when the first of them begins."""

    tenant: str
    choices: list[Choice]
    shared: msgspec.Raw


def call_of(requests: Sequence[Submit]) -> Call:
    """The message for requests that differ in prompt, length, seed, and in what was given of their replies, alone."""
    prompts: dict[int, Submit] = {}  # the first request of each, by the list's identity
    places: dict[int, int] = {}
    choices = []
    for each in requests:
        place = places.setdefault(id(each.prompt), len(places))
        prompts.setdefault(place, each)
        asked = each.sampling
        choices.append(Choice(each.request_id, place, len(each.prompt), asked.max_tokens, asked.seed, each.resumed))
    first = requests[0]
    shared = Shared(
        prompts=[each.prompt for each in prompts.values()],
        predictions=[each.prediction for each in prompts.values()],
        pictures=[each.pictures for each in prompts.values()],
        sampling=first.sampling,
        speculation=first.speculation,
        cache_salt=first.cache_salt,
        session_id=first.session_id,
        call_id=first.call_id,
        weight=first.weight,
        priority=first.priority,
        pooling=first.pooling,
    )
    return Call(tenant=first.tenant, choices=choices, shared=msgspec.Raw(_ENCODER.encode(shared)))


def calls_of(requests: Sequence[Submit]) -> list[Call]:
    """The messages for requests of any calls, in the order of their first ones."""
    by_call: dict[tuple[str, str], list[Submit]] = {}
    for each in requests:
        by_call.setdefault((each.tenant, each.call_id or each.request_id), []).append(each)
    return [call_of(some) for some in by_call.values()]


def request_of_call(call: Call, shared: Shared, choice: Choice) -> Submit:
    return Submit(
        request_id=choice.request_id,
        prompt=shared.prompts[choice.prompt],
        sampling=replace(shared.sampling, max_tokens=choice.max_tokens, seed=choice.seed),
        speculation=shared.speculation,
        tenant=call.tenant,
        cache_salt=shared.cache_salt,
        session_id=shared.session_id,
        call_id=shared.call_id,
        weight=shared.weight,
        priority=shared.priority,
        pooling=shared.pooling,
        prediction=shared.predictions[choice.prompt],
        pictures=shared.pictures[choice.prompt],
        resumed=choice.resumed,
    )


def shared_of(call: Call) -> Shared:
    return msgspec.msgpack.decode(call.shared, type=Shared)
