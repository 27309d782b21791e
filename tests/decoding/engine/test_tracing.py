"""A traced request tells where each token came from and what the target made of every node, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core.events import Finished, Tokens, Traced
from decoding.core.request import Request
from decoding.core.step_trace import StepTrace
from decoding.engine.engine import Engine
from decoding.engine.step_result import StepResult
from decoding.errors import RequestRejected
from tests.decoding.engine.test_engine import SAMPLED, new_engine, prompt_of, reply, request_of


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


def traced_reply(engine: Engine, request: Request) -> tuple[list[int], list[StepResult]]:
    engine.add(request)
    results = []
    while engine.has_work:
        results.append(engine.step())
    return request.output.tolist(), results


def traces_of(results: list[StepResult]) -> list[StepTrace]:
    return [told.trace for result in results for told in result.of(Traced)]


def test_a_trace_accounts_for_every_token_of_the_same_reply(engine: Engine) -> None:
    prompt = prompt_of(60)
    plain = reply(engine, request_of("plain", prompt, SAMPLED))
    tokens, results = traced_reply(engine, request_of("traced", prompt, SAMPLED, "spine", trace="trees", max_nodes=16))
    assert tokens == plain
    traces = traces_of(results)
    assert [trace.number for trace in traces] == list(range(1, len(traces) + 1))
    assert sum(len(trace.sources) for trace in traces) == len(tokens)
    assert {trace.method for trace in traces} == {"spine"}
    counts = results[-1].of(Finished)[0].stats.counts
    assert sum(trace.drafted for trace in traces) == counts.drafted > 0
    assert sum(trace.accepted for trace in traces) == counts.accepted > 0
    for trace in traces[:-1]:
        assert trace.sources[-1] == "bonus"
        assert len(trace.sources) == trace.accepted + 1


def test_a_tree_has_the_accepted_path_and_what_the_target_thought(engine: Engine) -> None:
    sampling = SAMPLED.__class__(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=0)
    tokens, results = traced_reply(
        engine, request_of("trees", prompt_of(60), sampling, "spine", trace="trees", max_nodes=16)
    )
    emitted = [entry for result in results for each in result.of(Tokens) for entry in each.logprobs or ()]
    assert [entry.token_id for entry in emitted] == tokens
    position, rejected = 0, 0
    for trace in traces_of(results):
        assert trace.tree is not None
        assert (trace.tree[0].parent, trace.tree[0].source, trace.tree[0].logprob) == (-1, "root", None)
        path = [node for node in trace.tree[1:] if node.is_accepted]
        for node, source, entry in zip(path, trace.sources, emitted[position:], strict=False):
            assert (node.source, node.token_id, node.logprob) == (source, entry.token_id, entry.logprob)
            assert trace.tree[node.parent].is_accepted
        assert all(node.source in node.named_by for node in trace.tree)
        rejected += sum(not node.is_accepted for node in trace.tree)
        position += len(trace.sources)
    assert rejected > 0


def test_only_those_who_ask_are_told_and_trees_only_on_request(engine: Engine) -> None:
    _, results = traced_reply(engine, request_of("untold", prompt_of(40), SAMPLED, "spine"))
    assert traces_of(results) == []
    _, results = traced_reply(engine, request_of("told", prompt_of(40), SAMPLED, "none", trace="steps"))
    assert [trace.tree for trace in traces_of(results)] == [None] * SAMPLED.max_tokens
    assert {source for trace in traces_of(results) for source in trace.sources} == {"bonus"}


def test_an_unknown_kind_of_trace_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="trace") as refused:
        engine.add(request_of("bad", np.arange(3, 9, dtype=np.int32), SAMPLED, "spine", trace="everything"))
    assert refused.value.param == "speculation.trace"
