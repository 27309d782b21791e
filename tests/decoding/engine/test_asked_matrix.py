"""Whatever a request asks of its tokens, drafted and plain replies are the same: tokens, logprobs and reasons."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from decoding.core.grammar import Grammar
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import DraftCounts
from decoding.engine.engine import Engine
from tests.asking import Reply, ask, encode

METHODS = ("none", "spine", "stand", "dynamic", "recycle")
PROMPT = encode('def total_price(prices, tax):\n    """Add up the prices and put the tax on top."""\n')
PLAIN = SamplingParams(max_tokens=60, temperature=0.0, seed=11, ignore_eos=True)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 4},
        "colour": {"enum": ["red", "green"]},
    },
    "required": ["title", "sizes", "colour"],
    "additionalProperties": False,
}
COMMON = tuple(int(token) for token in np.unique(encode("return the number of value is not in list for (){}[]:.=+-\n")))
ASKED = {
    "penalties": {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    "bias": {},
    "min_p": {"min_p": 0.1},
    "top_p": {"top_p": 0.9, "top_k": 40},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
    "stop": {"ignore_eos": False, "min_tokens": 12},
    "grammar": {"grammar": Grammar("json_schema", json.dumps(SCHEMA)), "ignore_eos": False},
    "prediction": {},
    "bad_words": {},
    "allowed": {"allowed_token_ids": COMMON},
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ASKED)
def test_replies_are_equal_across_methods(gosling: Engine, name: str, temperature: float) -> None:
    if not gosling.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    free = ask(gosling, PROMPT, replace(PLAIN, temperature=temperature))
    asked = ASKED[name] | _asked_against(free.tokens, name)
    sampling = replace(PLAIN, temperature=temperature, **asked)  # type: ignore[arg-type]
    prediction = _edited(free.tokens) if name == "prediction" else None
    accepted = rejected = 0
    replies: list[Reply] = []
    for method in METHODS:
        reply = ask(gosling, PROMPT, sampling, method, prediction)
        assert reply.stats is not None
        accepted += reply.stats.counts.accepted
        rejected += reply.stats.counts.drafted - reply.stats.counts.accepted
        replies.append(reply)
    for reply in replies[1:]:
        assert reply.tokens == replies[0].tokens
        assert reply.logprobs == replies[0].logprobs
        assert reply.prompt_logprobs == replies[0].prompt_logprobs
        assert reply.reason is replies[0].reason
        assert _predicted(reply) == _predicted(replies[0])
    assert accepted > 0
    assert rejected > 0
    if name in ("prediction", "logprobs"):
        assert replies[0].tokens == free.tokens
    elif not (name in ("min_p", "top_p") and temperature == 0.0):
        assert replies[0].tokens != free.tokens, "what was asked changed nothing"


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize("name", ASKED)
def test_a_reply_resumed_after_any_of_its_tokens_goes_on_as_it_would_have(
    gosling: Engine, name: str, temperature: float
) -> None:
    if not gosling.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    free = ask(gosling, PROMPT, replace(PLAIN, temperature=temperature))
    asked = ASKED[name] | _asked_against(free.tokens, name)
    sampling = replace(PLAIN, temperature=temperature, **asked)  # type: ignore[arg-type]
    prediction = _edited(free.tokens) if name == "prediction" else None
    whole = ask(gosling, PROMPT, sampling, "none", prediction)
    for place, method in zip((1, 7, len(whole.tokens) // 2, len(whole.tokens) - 1), METHODS[1:], strict=True):
        rest = ask(gosling, PROMPT, sampling, method, prediction, whole.tokens[:place])
        assert rest.tokens == whole.tokens[place:]
        assert rest.logprobs == (whole.logprobs and whole.logprobs[place:])
        assert rest.prompt_logprobs is None, "they were told before the first token"
        assert rest.reason is whole.reason
        assert _predicted(rest) == _predicted(whole)
        assert rest.stats is not None
        assert (rest.stats.resumed_tokens, rest.stats.emitted) == (place, len(rest.tokens))


def _asked_against(tokens: list[int], name: str) -> dict[str, object]:
    """Bias, stops and bad words that this reply does not obey."""
    commonest = max(set(tokens), key=tokens.count)
    if name == "bias":
        return {"logit_bias": {commonest: -2.0, tokens[3]: -100.0, tokens[20]: 1.5}}
    if name == "stop":
        return {"stop_token_ids": tuple(tokens[12:20])}
    return {"bad_words": ((tokens[8],), tuple(tokens[2:5]), tuple(tokens[30:32]))} if name == "bad_words" else {}


def _edited(tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The reply with a token replaced, one taken out and one put in."""
    return np.array([*tokens[:10], 7, *tokens[11:25], *tokens[26:40], 9, *tokens[40:]], np.int32)


def _predicted(reply: Reply) -> tuple[int, int]:
    assert reply.stats is not None
    return reply.stats.accepted_prediction_tokens, reply.stats.rejected_prediction_tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grammar_is_drafted_from_and_costs_no_acceptance(gosling: Engine, temperature: float) -> None:
    sampling = replace(PLAIN, temperature=temperature)
    bound = replace(sampling, grammar=Grammar("json_schema", json.dumps(SCHEMA)), ignore_eos=False)
    for method in METHODS[1:]:
        with_grammar, without = (ask(gosling, PROMPT, each, method, max_nodes=16) for each in (bound, sampling))
        assert with_grammar.reason is FinishReason.STOP
        json.loads(with_grammar.text)
        assert _acceptance_length(with_grammar) > 0.8 * _acceptance_length(without)  # which is another text
        counts = with_grammar.stats.counts if with_grammar.stats else DraftCounts()
        assert counts.accepted_by_source["grammar"] > 5


STEPS = {
    "type": "object",
    "properties": {
        "explanation": {"type": "string", "maxLength": 100},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 2, "maxItems": 3},
    },
    "required": ["explanation", "steps"],
    "additionalProperties": False,
}
STORES = frozenset({"context", "adjacency", "ngram", "grammar"})


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_step_whose_whole_tree_the_grammar_forbids_changes_no_token(gosling: Engine, temperature: float) -> None:
    """As often where a string has an end and the stores alone draft: no later tree is part of that one."""
    if not gosling.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    sampling = replace(PLAIN, max_tokens=120, temperature=temperature, ignore_eos=False)
    for seed in range(4):
        asked = replace(sampling, seed=seed, grammar=Grammar("json_schema", json.dumps(STEPS)))
        plain = ask(gosling, PROMPT, asked)
        assert ask(gosling, PROMPT, asked, "auto", max_nodes=16, sources=STORES).tokens == plain.tokens


def _acceptance_length(reply: Reply) -> float:
    assert reply.stats is not None
    return reply.stats.emitted / reply.stats.target_forwards


def test_an_edited_file_as_prediction_saves_most_forwards(gosling: Engine) -> None:
    sampling = replace(PLAIN, max_tokens=280)
    plain = ask(gosling, PROMPT, sampling)
    name = max(set(filter(str.isidentifier, plain.text.replace("(", " ").split())), key=plain.text.count)
    assert plain.text.count(name) > 2
    prediction = encode(plain.text.replace(name, "renamed_by_its_user"))
    for method in ("auto", "spine", "stand", "dynamic"):
        drafted = ask(gosling, PROMPT, sampling, method, prediction, max_nodes=32)
        assert drafted.tokens == plain.tokens
        assert drafted.stats is not None
        assert plain.stats is not None
        assert 3 * drafted.stats.target_forwards <= plain.stats.target_forwards
        assert drafted.stats.accepted_prediction_tokens + drafted.stats.rejected_prediction_tokens == len(prediction)
        assert drafted.stats.accepted_prediction_tokens > len(plain.tokens) // 2
        assert drafted.stats.counts.accepted_by_source["prediction"] > len(plain.tokens) // 3, "where it speaks most"


def test_a_useless_prediction_costs_next_to_nothing(gosling: Engine) -> None:
    useless = np.random.default_rng(0).integers(5, gosling.model.vocab_size, 300).astype(np.int32)
    sampling = replace(PLAIN, max_tokens=150)
    plain = ask(gosling, PROMPT, sampling, "none", useless)
    assert plain.stats is not None
    assert plain.stats.counts.drafted == 0
    for method in ("auto", "spine", "stand"):
        drafted = ask(gosling, PROMPT, sampling, method, useless, max_nodes=16)
        alone = ask(gosling, PROMPT, sampling, method, max_nodes=16)
        assert drafted.tokens == alone.tokens == plain.tokens
        assert drafted.stats is not None
        assert alone.stats is not None
        if method != "auto":  # which goes by the clock
            assert drafted.stats.target_forwards <= 1.1 * alone.stats.target_forwards
        assert drafted.stats.accepted_prediction_tokens < 5


def test_a_request_under_rejection_keeps_what_it_asked_for(gosling: Engine) -> None:
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    for seed in range(3):
        bound = replace(PLAIN, temperature=0.8, grammar=grammar, ignore_eos=False, seed=seed)
        reply = ask(gosling, PROMPT, bound, "stand", verification="rejection")
        assert reply.reason is FinishReason.STOP
        json.loads(reply.text)
        allowed = replace(PLAIN, temperature=0.8, allowed_token_ids=COMMON, seed=seed)
        assert set(ask(gosling, PROMPT, allowed, "stand", verification="rejection").tokens) <= set(COMMON)
