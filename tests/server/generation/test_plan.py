"""Seeds, limits and lengths: from a body to requests."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server.config import ServerSettings
from server.generation.options import GenerationOptions
from server.generation.plan import choice_seed, plan_choices
from server.http.errors import ApiError
from server.http.sender import Sender
from server.prompts.encoding import EncodedPrompt
from server.prompts.model_files import ModelFiles
from server.prompts.served_model import ServedModel
from server.prompts.tokenizer import load_tokenizer
from server.schemas.completions import CompletionRequest
from tests.server.ready import READY
from tests.server.servers import make_model_folder


def test_the_first_choice_uses_the_seed_itself_and_the_others_are_distinct_and_fixed() -> None:
    assert choice_seed(5, 0, 0) == 5
    assert choice_seed(-1, 0, 0) == 2**64 - 1
    seeds = {choice_seed(5, prompt, choice) for prompt in range(20) for choice in range(20)}
    assert len(seeds) == 400
    assert choice_seed(5, 1, 2) == 9489240442334438348
    assert choice_seed(None, 0, 0) != choice_seed(None, 0, 0)


def test_choices_are_numbered_prompt_by_prompt(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path)), None), trust_remote_code=False)
    model = ServedModel("toy", tokenizer, None, READY, ServerSettings())
    asked = {"prompt": ["a", "b"], "n": 2, "echo": True, "seed": 1, "stop": "x"}
    body = CompletionRequest.model_validate({**asked, "speculation": {"sources": ["context", "ngram"]}})
    prompts = [EncodedPrompt([1], "a"), EncodedPrompt([2], "b")]
    options = GenerationOptions(id_prefix="cmpl-", prompts=prompts, max_tokens=16, num_choices=2, echo=True)
    plans = plan_choices(body, options, model, Sender("", "me"), "cmpl-1")
    assert [plan.request.request_id for plan in plans] == [f"cmpl-1-{i}" for i in range(4)]
    assert [(plan.request.prompt, plan.echo) for plan in plans] == [
        (prompt.token_ids, prompt) for prompt in prompts for _ in range(2)
    ]
    assert len({plan.request.sampling.seed for plan in plans}) == 4
    assert {(plan.request.sampling.max_tokens, plan.request.session_id) for plan in plans} == {(16, "me")}
    assert {plan.request.speculation.sources for plan in plans} == {frozenset({"context", "ngram"})}


def test_a_prediction_is_cut_to_what_the_context_has_room_for_after_the_prompt(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFiles(str(make_model_folder(tmp_path)), None), trust_remote_code=False)
    model = ServedModel("toy", tokenizer, None, READY, ServerSettings())
    prediction = {"type": "content", "content": "y" * 2_000_000}
    body = CompletionRequest.model_validate({"prompt": ["a", "b"], "n": 64, "prediction": prediction})
    prompts = [EncodedPrompt([1] * 30, "a"), EncodedPrompt([2] * 90, "b")]
    options = GenerationOptions(id_prefix="cmpl", prompts=prompts, max_tokens=5, num_choices=64)
    plans = plan_choices(body, options, model, Sender("", "me"), "cmpl-1")
    assert [len(plan.request.prediction) for plan in plans] == [70] * 64 + [10] * 64
    assert len({id(plan.stops) for plan in plans}) == 1, "what finds stop strings is made once a call"


def reply_len(prompt_len: int, max_tokens: int | None, **settings: Any) -> int:
    """The longest reply to a prompt in a context of 100 tokens, where 16 are the default."""
    model = ServedModel(
        "toy", Mock(longest_token=1, encode=Mock(return_value=[])), None, READY, ServerSettings(**settings)
    )
    prompts = [EncodedPrompt([1] * prompt_len, "a")]
    options = GenerationOptions(id_prefix="cmpl-", prompts=prompts, max_tokens=max_tokens, default_max_tokens=16)
    body = CompletionRequest.model_validate({"prompt": "a"})
    (plan,) = plan_choices(body, options, model, Sender("", "me"), "cmpl-1")
    return plan.request.sampling.max_tokens


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "expected"), [(10, None, 16), (95, None, 5), (90, 10, 10), (99, 1, 1)]
)
def test_a_reply_has_the_room_it_asks_for(
    prompt_len: int, max_tokens: int | None, expected: int, is_strict: bool
) -> None:
    assert reply_len(prompt_len, max_tokens, strict_length=is_strict) == expected


def test_a_reply_is_as_long_as_the_context_holds_unless_the_server_is_strict() -> None:
    assert reply_len(95, 6) == 5
    with pytest.raises(ApiError) as caught:
        reply_len(95, 6, strict_length=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("max_tokens", [None, 1, 50])
def test_a_prompt_that_leaves_no_room_is_refused(max_tokens: int | None, is_strict: bool) -> None:
    with pytest.raises(ApiError) as caught:
        reply_len(100, max_tokens, strict_length=is_strict)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert caught.value.anthropic_message == "prompt is too long: 100 tokens > 99 maximum"
