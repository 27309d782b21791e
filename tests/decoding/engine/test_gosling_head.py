"""The head that comes with the bundled model drafts, and what it drafts changes no token."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from decoding.config import EngineConfig
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import BUNDLED_FOLDER

PROMPTS = (
    "Question: Tom has 12 apples. He buys 7 apples. Then he loses 4 apples. How many has he now?\nAnswer:",
    "def add(a, b):\n",
    "Once upon a time there was a",
)
SAMPLINGS = (
    SamplingParams(max_tokens=48, temperature=0.0),
    SamplingParams(max_tokens=48, temperature=0.8, seed=3, top_p=0.95, presence_penalty=0.4),
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = load_engine(EngineConfig(model="gosling", draft_head="gosling", kv_slots=4096))
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    return engine


def replies(engine: Engine, method: str, sampling: SamplingParams, *, together: bool) -> tuple[list[list[int]], int]:
    """The tokens of every prompt, and how many drafted ones of the head were accepted."""
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    accepted = 0
    requests = [
        Request(
            id=f"{place}",
            prompt=np.array(tokenizer.encode(text).ids, np.int32),
            sampling=sampling,
            speculation=SpeculationParams(method=method, max_nodes=0 if method == "none" else 16),
            session_id=f"{method} {place} {together}",
            eos_token_ids=engine.model.eos_token_ids,
        )
        for place, text in enumerate(PROMPTS)
    ]
    for request in requests:
        engine.add(request)
        while engine.has_work and not (together and request is not requests[-1]):
            for finished in engine.step().of(Finished):
                accepted += finished.stats.counts.accepted_by_source.get("draft_model", 0)
    return [request.output.tolist() for request in requests], accepted


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["eagle", "dynamic", "auto"])
def test_the_head_drafts_and_changes_no_token(engine: Engine, method: str, sampling: SamplingParams) -> None:
    plain, _ = replies(engine, "none", sampling, together=False)
    for together in (False, True):
        drafted, accepted = replies(engine, method, sampling, together=together)
        assert drafted == plain
        assert accepted > 10
