"""Asking an engine for one reply after another, with everything that is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from decoding.core.events import Finished, PromptLogprobs, Tokens
from decoding.core.request import FinishReason, Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.drafting.registry import METHODS
from decoding.engine.engine import Engine
from decoding.model.checkpoint import BUNDLED_FOLDER

TOKENIZER = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
_NUMBERS = count()


@dataclass
class Reply:
    """What the engine gave; `stats` when it ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reason: FinishReason | None = None
    stats: RequestStats | None = None

    @property
    def text(self) -> str:
        return TOKENIZER.decode(self.tokens)


def encode(text: str) -> NDArray[np.int32]:
    return np.array(TOKENIZER.encode(text).ids, np.int32)


def own_nodes(method: str, most_nodes: int) -> int | None:
    """The size of a method's own trees, as far as a server allows it; None where nodes are weighed."""
    own = METHODS[method].most_nodes
    return None if own is None else min(own, most_nodes)


def ask(
    engine: Engine,
    prompt: NDArray[np.int32],
    sampling: SamplingParams,
    method: str = "none",
    prediction: NDArray[np.int32] | None = None,
    resumed: Sequence[int] = (),
    **speculation: object,
) -> Reply:
    """One reply, in a session of its own, with nothing else running; what comes after the tokens `resumed`, if any.
    Trees are of their method's own size, whatever they cost, unless `speculation` says otherwise."""
    speculation.setdefault("max_nodes", own_nodes(method, engine.config.max_nodes))
    name = f"asked-{next(_NUMBERS)}"
    request = Request(
        id=name,
        prompt=prompt,
        sampling=sampling,
        speculation=SpeculationParams(method=method, **speculation),  # type: ignore[arg-type]
        eos_token_ids=engine.model.eos_token_ids,
        session_id=name,
        prediction=np.empty(0, np.int32) if prediction is None else prediction,
        resumed=np.array(resumed, np.int32),
    )
    engine.add(request)
    reply = Reply()
    while engine.has_work:
        result = engine.step()
        for scored in result.of(PromptLogprobs):
            assert reply.prompt_logprobs is None
            assert not reply.tokens
            reply.prompt_logprobs = scored.logprobs
        for emitted in result.of(Tokens):
            reply.tokens += emitted.token_ids
            if emitted.logprobs is not None:
                assert len(emitted.logprobs) == len(emitted.token_ids)
                reply.logprobs = [*(reply.logprobs or []), *emitted.logprobs]
        for finished in result.of(Finished):
            reply.reason, reply.stats = finished.reason, finished.stats
    assert [*resumed, *reply.tokens] == request.output.tolist()
    return reply
