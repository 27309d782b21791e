"""Engines of tiny models that see, and requests with pictures that transformers' own processors have made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel

from decoding.core.picture import Numbers, Picture, Span
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from tests.pairs import CONFIG, GIVEN, reply, request_of
from tests.seeing import processor_of, tiny_seeing

METHODS = ("spine", "stand", "auto", "lookup", "suffix")
LAWS = {
    "greedy": SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=24, temperature=0.8, seed=7, ignore_eos=True),
}
INPUTS = ("pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw")
TEXT = "one two three four five six IMAGE seven IMAGE eight one two three four five"


@dataclass(frozen=True)
class Family:
    """kind: of the model; own: transformers' model; engine: over the same weights."""

    kind: str
    own: PreTrainedModel
    engine: Engine

    def inputs(self, images: list[Image.Image], text: str = TEXT) -> Any:
        """What transformers' processor makes of a text with pictures."""
        processor = processor_of(self.kind)
        text = text.replace("IMAGE", processor.image_token)
        return processor(images=images, text=text, return_tensors="pt")

    def request(self, name: str, images: list[Image.Image], text: str = TEXT, **options: Any) -> Request:
        request = request_of(name, np.zeros(1, np.int32), **options)
        prompt = self.inputs(images, text)["input_ids"][0].numpy().astype(np.int32)
        return replace(request, prompt=prompt, pictures=self.pictures(images, prompt))

    def pictures(self, images: list[Image.Image], prompt: Any) -> tuple[Picture, ...]:
        """Of a prompt, each processed alone, with a picture's spans where its tokens are."""
        tower = self.engine.model.tower
        assert tower is not None
        places, taken, pictures = np.flatnonzero(prompt == tower.image_token_id), 0, []
        for image in images:
            made = self.inputs([image], "IMAGE")
            num_rows = int((made["input_ids"] == tower.image_token_id).sum())
            inputs = {name: Numbers.of(each.numpy()) for name, each in made.items() if name in INPUTS}
            digest = blake2b(image.tobytes(), digest_size=16).digest()
            spans = [Span(int(place), 1) for place in places[taken : taken + num_rows]]
            pictures.append(Picture(digest, inputs, tuple(spans)))
            taken += num_rows
        return tuple(pictures)


def check_against_generate(family: Family, images: list[Image.Image]) -> None:
    """The plain greedy reply is what transformers' model generates."""
    inputs = family.inputs(images)
    with torch.inference_mode():
        expected = family.own.generate(**inputs, max_new_tokens=24, do_sample=False, eos_token_id=None)
    plain = reply(family.engine, family.request("plain", images, sampling=LAWS["greedy"]))
    assert plain == expected[0, inputs["input_ids"].shape[1] :].tolist()


@cache
def family_of(kind: str) -> Family:
    folder = Path(mkdtemp())
    own = tiny_seeing(kind, folder)
    model = TargetModel.load(replace(CONFIG, model=str(folder), dtype="float32"), silent)
    assert model.is_exact
    return Family(kind, own, start_engine(model, CONFIG, kept=GIVEN))
