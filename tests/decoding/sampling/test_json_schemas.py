"""Structured replies are valid for fifty schemas while trees are drafted, and those of plain decoding."""

from __future__ import annotations

import json

import jsonschema
import pytest

from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from tests.asking import ask, encode
from tests.decoding.sampling.json_schemas import SCHEMAS

PROMPT = encode("Describe the thing as JSON.\n")
DRAFTED_BY = ("spine", "stand", "recycle", "lookup", "auto")


def test_there_are_fifty_schemas() -> None:
    assert len({json.dumps(schema) for schema in SCHEMAS}) == 50


@pytest.mark.parametrize("place", range(50))
def test_a_drafted_reply_is_valid(gosling: Engine, place: int) -> None:
    schema = SCHEMAS[place]
    sampling = SamplingParams(
        max_tokens=300,
        temperature=0.9 if place % 2 else 0.0,
        seed=place,
        grammar=Grammar("json_schema", json.dumps(schema)),
    )
    reply = ask(gosling, PROMPT, sampling, DRAFTED_BY[place % len(DRAFTED_BY)])
    assert reply.reason is FinishReason.STOP
    jsonschema.validate(json.loads(reply.text), schema)
    if gosling.model.is_exact and place % 5 == 0:
        assert ask(gosling, PROMPT, sampling, "none").tokens == reply.tokens
    assert reply.stats is not None
    if "object" in schema.get("type", ""):
        assert reply.stats.counts.accepted_by_source["grammar"] > 0
        assert reply.stats.target_forwards < len(reply.tokens)
