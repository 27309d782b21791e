"""What the tower and the prompt are given of a picture is what transformers' processor of each family gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from server.prompts.images.processor import ImageProcessor, load_image_processor
from server.prompts.model_files import ModelFiles
from tests.seeing import FAMILIES, picture, processor_of, tiny_seeing


def loaded(kind: str, folder: Path) -> ImageProcessor:
    tiny_seeing(kind, folder)
    processor = load_image_processor(ModelFiles(str(folder), None), True, False)
    assert processor is not None
    return processor


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_picture_is_processed_as_by_transformers(kind: str, tmp_path: Path) -> None:
    processor, own, image = loaded(kind, tmp_path), processor_of(kind), picture(3, 90, 61)
    expected = own(images=[image], text=own.image_token, return_tensors="np")
    made = processor.process(image, "auto")
    ids = own.tokenizer(made.text)["input_ids"]
    assert ids == expected["input_ids"][0].tolist()
    assert ids.count(processor.row_token_id) == made.num_rows > 0
    for name, numbers in made.inputs.items():
        np.testing.assert_array_equal(numbers.array(), expected[name], name)


def test_pixtrals_picture_is_rows_of_tokens(tmp_path: Path) -> None:
    """28 pixels a token, of 4 x 3 tokens."""
    made = loaded("mistral3", tmp_path).process(picture(0, 112, 84), "auto")
    row = "[IMG]" * 4
    assert made.text == f"{row}[IMG_BREAK]{row}[IMG_BREAK]{row}[IMG_END]"
    assert made.num_rows == 12
    assert made.inputs["image_sizes"].array().tolist() == [[84, 112]]
