"""The positions of a prompt with pictures are those of transformers' Qwen2-VL."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

from decoding.core.picture import Picture, Span, rotary_positions

MERGED = 2


def pictures_at(places: list[int], grids: list[tuple[int, int, int]]) -> list[Picture]:
    sizes = [int(np.prod(grid)) for grid in grids]
    return [Picture(b"", {}, (Span(place, size),)) for place, size in zip(places, sizes, strict=True)]


@pytest.mark.parametrize(
    ("places", "grids"),
    [([0], [(1, 3, 4)]), ([5, 20], [(1, 2, 3), (1, 4, 2)]), ([1, 8, 30], [(1, 1, 6), (1, 7, 1), (1, 5, 5)])],
)
def test_positions_are_those_of_transformers(places: list[int], grids: list[tuple[int, int, int]]) -> None:
    pictures, length = pictures_at(places, grids), 70
    kinds = torch.zeros(1, length, dtype=torch.int64)
    for picture in pictures:
        kinds[0, picture.spans[0].first : picture.spans[0].end] = 1
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=MERGED))
    own = SimpleNamespace(
        config=config,
        get_vision_position_ids=lambda *given, **named: Qwen2VLModel.get_vision_position_ids(None, *given, **named),
    )
    patches = torch.tensor([(time, MERGED * high, MERGED * wide) for time, high, wide in grids])
    expected, delta = Qwen2VLModel.get_rope_index(own, torch.zeros_like(kinds), kinds, image_grid_thw=patches)
    found = rotary_positions(pictures, grids)
    assert found.shift == int(delta)
    np.testing.assert_array_equal(found.at(np.arange(length)), expected[:, 0].numpy())
    np.testing.assert_array_equal(found.at(np.array([33, 60, 61, 61, 62])), expected[:, 0, [33, 60, 61, 61, 62]])


def test_a_picture_has_its_rows_side_by_side() -> None:
    apart = Picture(b"", {}, (Span(0, 3), Span(4, 3)))
    with pytest.raises(ValueError, match="a picture of 1 x 2 x 3 rows has 6 places"):
        rotary_positions([apart], [(1, 2, 3)])
