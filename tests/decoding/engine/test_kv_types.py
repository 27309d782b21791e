"""With every type of keys and values drafted replies are the plain ones, whether rows were computed, found or read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from decoding.cache.kv_format import name_of
from decoding.config import KvDtype
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.model.target_model import TargetModel
from tests.decoding.engine.test_kept_prompts import NUM_KEPT, flush, prompt_of, run
from tests.models import correlated, tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, NOISE, SAMPLED

METHODS = ("spine", "dynamic", "fixed", "auto")
LAWS = {"greedy": replace(GREEDY, max_tokens=12), "sampled": replace(SAMPLED, max_tokens=12)}
NUM_BEFORE = 5  # tokens of a reply that another engine has given


@pytest.fixture(scope="module", params=FORMATS)
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Engine]]:
    """One that keeps nothing of prompts, and one that keeps them in memory and in files."""
    kv_dtype: KvDtype = request.param
    config = replace(CONFIG, kv_dtype=kv_dtype, prefix_dir=str(tmp_path_factory.mktemp("prompts")))
    target = TargetModel.from_model(tiny("llama"), config)
    draft = TargetModel.from_model(correlated("llama", NOISE), config)
    bare = replace(config, prefix_dir=None, prefix_cache=False)
    found = [start_engine(target, each, draft_model=draft, kept=GIVEN) for each in (bare, config)]
    yield found[0], found[1]
    for engine in found:
        engine.close(10.0)


@pytest.mark.parametrize("law", LAWS)
def test_drafted_replies_are_plain_without_hits_after_hits_in_memory_and_in_files(
    engines: tuple[Engine, Engine], law: str
) -> None:
    bare, keeping = engines
    sampling, prompt = LAWS[law], prompt_of(list(LAWS).index(law))
    plain, _ = run(bare, prompt, sampling=sampling)
    run(keeping, prompt, sampling=sampling)
    assert keeping.stats().kept_bytes > 0
    stats: list[RequestStats] = []
    for method, source in product(METHODS, ("none", "memory", "files")):
        if source == "files":
            keeping.pool.forget()
        num_hits = keeping.stats().kept_hits
        reply, told = run(bare if source == "none" else keeping, prompt, method, sampling=sampling)
        assert reply == plain
        assert told.cached_tokens == (0 if source == "none" else NUM_KEPT)
        assert keeping.stats().kept_hits == num_hits + (source == "files")
        stats.append(told)
    drafted = sum(each.counts.drafted for each in stats)
    assert 0 < sum(each.counts.accepted for each in stats) < drafted


@pytest.mark.parametrize("law", LAWS)
def test_a_reply_goes_on_after_what_another_engine_gave_of_it(engines: tuple[Engine, Engine], law: str) -> None:
    bare, keeping = engines
    sampling, prompt = LAWS[law], prompt_of(7)
    whole, _ = run(bare, prompt, sampling=sampling)
    known = np.concatenate((prompt, np.array(whole[:NUM_BEFORE], np.int32)))
    rest = replace(sampling, max_tokens=sampling.max_tokens - NUM_BEFORE)
    for engine, method in product(engines, ("none", "auto")):
        reply, _ = run(engine, known, method, sampling=rest)
        assert reply == whole[NUM_BEFORE:]
    flush(keeping)


def test_bytes_of_a_token_are_those_of_its_type(engines: tuple[Engine, Engine]) -> None:
    model = engines[0].model
    whole = sum(layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in model.layers)
    num_scales = sum(2 * layer.num_kv_heads for layer in model.layers)  # of widths up to 32
    sizes = {"float32": 4 * whole, "int8": whole + 2 * num_scales, "fp8": whole}
    expected = sizes.get(name_of(model.kv_dtype), 2 * whole)
    assert model.bytes_per_slot == expected
    assert engines[1].store.block_bytes == 16 * expected
