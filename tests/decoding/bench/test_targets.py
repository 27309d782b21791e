"""The widened target is larger and says the same."""

import numpy as np
import pytest
import torch

from decoding.bench.targets import NUM_LAYERS, load_widened, widen
from decoding.config import EngineConfig
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.draft_model.draft_model import load_draft_model
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.model.device.runner import silent
from tests.models import VOCAB_SIZE, tiny


def test_extra_layers_change_no_bit_of_the_logits() -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB_SIZE, (1, 40)))
    narrow = tiny("llama", 3).eval()
    with torch.inference_mode():
        expected = narrow(ids).logits
        parameters = narrow.num_parameters()
        wide = widen(narrow, 10 * parameters)
        found = wide(ids).logits
    assert len(wide.model.layers) == NUM_LAYERS
    assert wide.num_parameters() == pytest.approx(10 * parameters, rel=0.02)
    assert torch.equal(found, expected)


def test_a_model_that_is_larger_already_is_refused() -> None:
    model = tiny("llama", 3)
    with pytest.raises(ValueError, match="cannot be widened to"):
        widen(model, model.num_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_widened_bundled_model_gives_its_tokens_and_accepts_its_drafts(temperature: float) -> None:
    config = EngineConfig(kv_slots=4096, threads=1)
    draft = load_draft_model(config, silent)
    wide = start_engine(load_widened(config, 12_000_000), config, draft_model=draft)
    narrow = load_engine(config)
    assert wide.model.num_parameters > 2 * narrow.model.num_parameters
    expected, counts = _answer(narrow, temperature)
    found, wide_counts = _answer(wide, temperature)
    assert found == expected
    assert wide_counts == counts
    drafted, accepted = counts
    assert 0 < accepted < drafted, "nothing was accepted or nothing rejected, so nothing was shown"


def _answer(engine: Engine, temperature: float) -> tuple[list[int], tuple[int, int]]:
    request = Request(
        id="one",
        prompt=np.arange(40, 80, dtype=np.int32),
        sampling=SamplingParams(max_tokens=40, temperature=temperature, seed=1, ignore_eos=True),
        speculation=SpeculationParams(method="fixed", max_depth=3, max_nodes=8),
    )
    engine.add(request)
    finished = None
    while finished is None:
        finished = next(iter(engine.step().of(Finished)), None)
    return request.output.tolist(), (finished.stats.counts.drafted, finished.stats.counts.accepted)
