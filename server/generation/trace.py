"""The `trace` object of a choice: the source of each token, what each step did, and the draft trees. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.core.events import Traced
from decoding.core.step_trace import NodeTrace
from server.generation.choice import TokenNews
from server.generation.logprobs import finite, token_text, written
from server.prompts.tokenizer import Tokenizer
from server.schemas.replies import Trace, TraceNode, TraceStep, TraceToken


def trace(tokenizer: Tokenizer, news: Sequence[TokenNews], steps: Sequence[Traced]) -> Trace:
    tokens = [written(_token(each)) for each in news if each.is_shown]
    return {"tokens": tokens, "steps": [written(_step(tokenizer, step)) for step in steps]}


def _token(news: TokenNews) -> TraceToken:
    origin, entry = news.origin, news.logprobs
    assert origin is not None
    return {
        "text": news.text,
        "id": entry.token_id,
        "source": origin.source,
        "depth": origin.depth,
        "step": origin.step,
        "logprob": finite(entry.logprob),
    }


def _step(tokenizer: Tokenizer, step: Traced) -> TraceStep:
    told = step.trace
    shown: TraceStep = {
        "step": told.number,
        "method": told.method,
        "drafted": told.drafted,
        "accepted": told.accepted,
        "seconds": step.seconds,
        "plain_seconds": step.plain_seconds,
        "prefill_rows": step.prefill_rows,
    }
    if told.tree is not None:
        shown["tree"] = [_node(tokenizer, node) for node in told.tree]
    return shown


def _node(tokenizer: Tokenizer, node: NodeTrace) -> TraceNode:
    return {
        "text": token_text(tokenizer.token_bytes(node.token_id)),
        "id": node.token_id,
        "parent": node.parent,
        "source": node.source,
        "named_by": node.named_by,
        "logprob": None if node.logprob is None else finite(node.logprob),
        "accepted": node.is_accepted,
    }
