"""`gander bench pictures [MODEL]`: the seconds until the first token after a picture, by its size and what takes them.

Runs the engine in this process. Invariant: no picture is shown twice, so that nothing is found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np
import transformers
from rich.console import Console

from decoding.bench.machine import describe_machine
from decoding.bench.options import numbers, positive
from decoding.bench.tables.table import Table
from decoding.config import EngineConfig
from decoding.core.events import Failed, Tokens
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.errors import ConfigError
from server.bench.pictures import picture_of
from server.bench.seeing.shape import NAME, write_model
from server.prompts.images.placing import placed
from server.prompts.images.processor import ImageProcessor, load_image_processor
from server.prompts.model_files import ModelFiles

SIDES = (256, 512, 1024, 2048)
QUESTION = "What is shown here?"
HEAD = ("picture", "tokens", "processor", "tower", "prompt", "first token", "tower's share")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of what happens to a picture, until the first token. processor: of its pixels; tower: of its rows;
    prompt: of reading these and the question's tokens."""

    processor: float
    tower: float
    prompt: float

    @property
    def first_token(self) -> float:
        return self.processor + self.tower + self.prompt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser("gander bench pictures", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", nargs="?", help=f"a model that sees, as of gander serve; by default one with {NAME}")
    parser.add_argument("--mmproj", help="the file with which a GGUF model sees; by default the one beside it")
    parser.add_argument("--sides", type=numbers, default=SIDES, help="pixels of square pictures (256,512,1024,2048)")
    parser.add_argument("--detail", choices=("auto", "low"), default="auto", help="low: not at a large picture's parts")
    parser.add_argument("--rounds", type=positive, default=3, help="pictures of each size, of which the median is told")
    parser.add_argument("--threads", type=positive, help="of the processor; by default the number measured quickest")
    given = parser.parse_args(argv)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # of each part of a model it would tell that there are others
    with tempfile.TemporaryDirectory(prefix="gander-pictures-") as folder:
        if given.model is None:
            write_model(Path(folder))
        files = ModelFiles(given.model or folder, None, None, given.mmproj)
        config = EngineConfig(model=files.model, mmproj=given.mmproj, threads=given.threads, max_nodes=0)
        table = measured(load_engine(config), _processor(files), given.sides, given.rounds, given.detail)
    Console(width=200).print(f"{given.model or NAME} on {describe_machine()}.\n\n{table.markdown()}", highlight=False)
    return 0


def _processor(files: ModelFiles) -> ImageProcessor:
    processor = load_image_processor(files, True, trust_remote_code=False)
    if processor is None:
        raise ConfigError(f"{files.model} takes no pictures")
    return processor


def measured(
    engine: Engine, processor: ImageProcessor, sides: Sequence[int], rounds: int, detail: str = "auto"
) -> Table:
    """A row for each size. detail: as of chats. Raises ConfigError for a model that takes no pictures."""
    if engine.pictures is None:
        raise ConfigError(f"the model takes no pictures: {engine.model.blindness}")
    cost_of(engine, processor, min(sides), -1, "low")  # whose first picture is slower
    rows = []
    for side in sides:
        found = [cost_of(engine, processor, side, number, detail) for number in range(rounds)]
        costs = Costs(*(median(getattr(cost, part.name) for cost, _ in found) for part in fields(Costs)))
        seconds = (costs.processor, costs.tower, costs.prompt, costs.first_token)
        share = f"{costs.tower / costs.first_token:.0%}"
        rows.append((f"{side} x {side}", str(found[0][1]), *(f"{each:.2f} s" for each in seconds), share))
    return Table(HEAD, rows)


def cost_of(
    engine: Engine, processor: ImageProcessor, side: int, number: int, detail: str = "auto"
) -> tuple[Costs, int]:
    """What a picture with this number costs, and its prompt's tokens. Raises ConfigError where no token comes."""
    assert engine.pictures is not None
    image = picture_of(side * 1000 + number + 1, side)
    begun = time.perf_counter()
    made = processor.process(image, detail)
    processed = time.perf_counter()
    names = processor.processor.tokenizer
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = names.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    prompt = names(text.replace(processor.placeholder, made.text), add_special_tokens=False)["input_ids"]
    pictures = placed([made], prompt, processor)
    before = time.perf_counter()
    engine.pictures.see(pictures).result()
    seen = time.perf_counter()
    request = Request(
        id=f"{side} {number}",
        prompt=np.array(prompt, np.int32),
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
        speculation=SpeculationParams(method="none"),
        pictures=tuple(pictures),
    )
    engine.add(request)
    is_told = False
    while engine.has_work:
        result = engine.step()
        is_told |= bool(result.of(Tokens))
        for failed in result.of(Failed):
            raise ConfigError(f"a picture of {side} pixels cannot be read: {failed.message}")
    assert is_told
    return Costs(processed - begun, seen - before, time.perf_counter() - seen), len(prompt)


if __name__ == "__main__":
    sys.exit(main())
