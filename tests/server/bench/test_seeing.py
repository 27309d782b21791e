"""What a picture costs until the first token is measured part by part, of a model that sees alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from decoding.errors import ConfigError
from server.bench.seeing.__main__ import HEAD, cost_of, main, measured
from server.bench.seeing.shape import _tokenizer, configuration
from server.prompts.images.processor import load_image_processor
from server.prompts.model_files import ModelFiles
from tests.pairs import engine_of
from tests.seeing import tiny_seeing
from tests.seeing_engines import Family, family_of


@pytest.fixture
def family() -> Family:
    found = family_of("idefics3")
    found.engine.start_afresh(0.0)
    return found


def test_each_size_has_a_row_and_no_picture_is_found_again(family: Family, tmp_path: Path) -> None:
    tiny_seeing("idefics3", tmp_path)
    processor = load_image_processor(ModelFiles(str(tmp_path), None), True, trust_remote_code=False)
    assert processor is not None
    table = measured(family.engine, processor, (40, 60), rounds=2)
    assert table.head == HEAD
    assert [row[:2] for row in table.rows] == [("40 x 40", "58"), ("60 x 60", "58")]
    assert family.engine.pictures is not None
    assert family.engine.pictures.num_seen == 5
    assert measured(family.engine, processor, (60,), 1, "low").rows[0][1] == "43"
    costs, num_tokens = cost_of(family.engine, processor, 40, 7)
    assert num_tokens == 58
    assert costs.first_token == costs.processor + costs.tower + costs.prompt
    assert min(costs.processor, costs.tower, costs.prompt) > 0
    with pytest.raises(ConfigError, match="the model takes no pictures: its tower was not loaded"):
        measured(engine_of("llama"), processor, (40,), rounds=1)


def test_a_model_of_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="gosling takes no pictures"):
        main(["gosling", "--sides", "40"])


def test_the_random_model_has_the_real_ones_shape() -> None:
    """SmolVLM-256M-Instruct has 256,484,928 parameters."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(configuration())
    assert model.num_parameters() == 256_484_928
    names = _tokenizer()
    assert len(names) == model.config.text_config.vocab_size
    assert names.convert_tokens_to_ids("<image>") == model.config.image_token_id
    assert names("<row_6_col_6>é")["input_ids"][0] == names.convert_tokens_to_ids("<row_6_col_6>")
