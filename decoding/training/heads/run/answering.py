"""The first part of a run: prompts from all its data, and the target's answers to them.

Invariant: prompts that are held out are answered first, so that a run without time left can still be measured.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import torch

from decoding.engine.start import load_engine
from decoding.errors import ConfigError
from decoding.training.heads.run.job import Job
from decoding.training.heads.run.parts import Part, Parts
from decoding.training.heads.texts.answers import HELD_OUT, Writer
from decoding.training.heads.texts.prompts import GENERATED, generated_prompts, no_data, prompts_of_file

HELD_OUT_TEMPERATURES = (0.0, 1.0)
MOST_AT_ONCE = 2  # rows of a step for each answer, so that prompts come beside them


def answers_folder(job: Job, source: str, parts: Parts) -> Path:
    """The folder of answers: one that is given, or the job's own, which is filled. source: of the tokenizer. Raises
    ConfigError for data that are none."""
    given = Path(job.data[0])
    if len(job.data) == 1 and given.is_dir() and any(given.glob("*.npz")):
        parts.skip("answers")
        return given
    prompts = all_prompts(job, source)
    if len(prompts) <= job.num_held_out:
        raise ConfigError(f"the data have {len(prompts)} prompts, and {job.num_held_out} of them are held out")
    folder = job.work / f"answers-{job.asking.name(job.engine.model, prompts)}"
    if not (parts.is_done("answers") and folder.is_dir()):
        with parts.part("answers") as part:
            _fill(job, prompts, folder, part)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return folder


def all_prompts(job: Job, source: str) -> list[list[int]]:
    """Those of all data in turn, so that of each some are held out."""
    found = []
    for each in job.data:
        if each == GENERATED:
            found.append(generated_prompts(source, job.num_prompts, job.asking.seed))
        elif Path(each).is_file():
            found.append(prompts_of_file(Path(each), source, job.num_prompts, job.asking.seed))
        else:
            raise no_data(each)
    longest = max(map(len, found))
    return [some[place] for place in range(longest) for some in found if place < len(some)]


def _fill(job: Job, prompts: list[list[int]], folder: Path, part: Part) -> None:
    config = replace(job.engine, draft_model="none", max_running=job.at_once)
    if job.at_once is not None:
        config = replace(config, max_batch_rows=max(64, MOST_AT_ONCE * job.at_once))
    engine = load_engine(config)
    part.note(0)
    kept = replace(job.asking, temperatures=HELD_OUT_TEMPERATURES, answers=len(HELD_OUT_TEMPERATURES))
    _write(Writer(engine, prompts[: job.num_held_out], kept, folder, HELD_OUT), part)
    _write(Writer(engine, prompts[job.num_held_out :], job.asking, folder), part)


def _write(writer: Writer, part: Part) -> None:
    while not writer.is_done:
        work = writer.step()
        part.note(work.tokens, work.products, work.num_bytes, f"{writer.num_ended:,} answers")
        if part.is_over:
            writer.give_up()
            return
