"""Log probabilities of what is said, with the tokens of a real vocabulary, which a stop string cuts anywhere."""

from __future__ import annotations

import random

import msgspec
import pytest

from decoding.core.events import Finished
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.worker.calls import Submit
from server.engine_client.replies import Reply
from server.generation.choice import Choice, ChoicePlan
from server.generation.events import folded
from server.generation.logprobs import TokenNames, said_logprobs
from server.parsing.parts import Parser, PlainParser, said
from server.parsing.string_search import SearchTree
from server.prompts.model_files import ModelFiles
from server.prompts.tokenizer import Tokenizer, load_tokenizer
from tests.server.parsing.replies import parser_of

TEXT = 'Once, in the café by the sea, a fox said:\n\n"Wait <tool_call> {"  日本 and 🦊 again. \n\n{"a": 1}\n\nThe end'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(ModelFiles("gosling", None), trust_remote_code=False)


def entries_of(tokenizer: Tokenizer, stop: str, parser: Parser, sizes: list[int]) -> tuple[str, list[bytes]]:
    """The content and the bytes of each entry. sizes: of the replies in which the tokens of `TEXT` come."""
    sampling = SamplingParams(max_tokens=500, logprobs=0)
    plan = ChoicePlan(
        request=Submit(request_id="a", prompt=[1], sampling=sampling, speculation=SpeculationParams()),
        stops=SearchTree([stop] if stop else []),
        parser=parser,
    )
    choice, token_ids, deltas = Choice(0, plan, tokenizer), tokenizer.encode(TEXT, False), []
    for size in [*sizes, len(token_ids)]:
        part, token_ids = token_ids[:size], token_ids[size:]
        scored = [TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1, top=()) for token_id in part]
        stats = RequestStats(prompt_tokens=1, emitted=1)
        end = None if token_ids else Finished(request_id="a", reason=FinishReason.LENGTH, stats=stats)
        delta = choice.feed(Reply(token_ids=part, logprobs=scored), end)
        deltas += [] if delta is None else [delta]
        if end is not None:
            break
    whole = folded(deltas)
    told = said_logprobs(TokenNames(tokenizer), whole.news, plan)
    streamed = [entry for delta in deltas for entry in said_logprobs(TokenNames(tokenizer), delta.news, plan)]
    assert streamed == told
    return said(whole.parts), [bytes(entry["bytes"]) for entry in msgspec.json.decode(msgspec.json.encode(told))]


@pytest.mark.parametrize("has_tools", [False, True])
def test_their_bytes_join_to_the_content_wherever_a_stop_string_cuts_it(tokenizer: Tokenizer, has_tools: bool) -> None:
    rng, num_cut = random.Random(7), 0
    whole = [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode(TEXT, False)]
    for _ in range(150):
        begin = rng.randrange(len(TEXT))
        stop = TEXT[begin : begin + rng.randrange(1, 6)]
        sizes = [rng.randrange(1, 9) for _ in range(40)]
        content, entries = entries_of(tokenizer, stop, parser_of() if has_tools else PlainParser(), sizes)
        assert content == TEXT.partition(stop)[0], stop
        assert b"".join(entries) == content.encode(), stop
        assert entries[:-1] == whole[: max(len(entries) - 1, 0)], "only the last may be a part of its token"
        num_cut += bool(entries) and entries[-1] != whole[len(entries) - 1]
    assert num_cut > 10, "some stop strings began within a token"


def test_every_token_has_one_where_nothing_is_cut(tokenizer: Tokenizer) -> None:
    whole = [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode(TEXT, False)]
    assert entries_of(tokenizer, "", PlainParser(), [1] * 200) == (TEXT, whole)
    assert entries_of(tokenizer, "never", parser_of(), [3] * 200) == (TEXT, whole)
