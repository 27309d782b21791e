"""Owns the answers that a head learns from: the target's own, generated shard by shard and kept on disk.

Does not know heads. Invariant: a shard is complete or missing, and depends only on its prompts, its number and the
seed, so a run that was stopped continues with the next shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoding.core.files.output import replace_file
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.errors import ConfigError

SHARD_LEN = 64  # prompts


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: int32 [t], a prompt and the target's answer, which starts at `num_prompt`."""

    tokens: NDArray[np.int32]
    num_prompt: int

    @property
    def reply(self) -> NDArray[np.int32]:
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class Asking:
    """How answers are drawn. temperatures: prompts take them in turn. max_tokens: of the answer. max_len: of prompt and
    answer."""

    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 512
    max_len: int = 2048
    seed: int = 0

    def name(self, model: str, prompts: Sequence[Sequence[int]]) -> str:
        """The name of the folder of these answers. It differs for another model, other prompts or other options."""
        told = repr((Path(model).name, self, [list(prompt) for prompt in prompts]))
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def regenerate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    asking: Asking,
    folder: Path,
    on_done: Callable[[int], None],
) -> None:
    """Write the missing shards. on_done: called with the number of prompts that have been answered so far."""
    for first in range(0, len(prompts), SHARD_LEN):
        path = folder / f"{first // SHARD_LEN:05d}.npz"
        if not path.exists():
            answers = _answer(engine, prompts[first : first + SHARD_LEN], first, asking)
            with replace_file(path) as file:
                np.savez_compressed(
                    file,
                    tokens=np.concatenate([answer.tokens for answer in answers]),
                    lengths=np.array([len(answer.tokens) for answer in answers], np.int64),
                    prompts=np.array([answer.num_prompt for answer in answers], np.int64),
                )
        on_done(min(len(prompts), first + SHARD_LEN))


def load_answers(folder: Path, max_len: int) -> list[Answer]:
    """All answers of a folder in the order of their prompts, cut to `max_len` tokens. Answers with nothing left to
    learn are skipped. Raises ConfigError if there is none."""
    answers = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as shard:
            ends = np.cumsum(shard["lengths"])
            tokens = shard["tokens"]
            for start, end, num_prompt in zip(ends - shard["lengths"], ends, shard["prompts"], strict=True):
                answers.append(Answer(tokens[start : min(end, start + max_len)], int(num_prompt)))
    learnable = [answer for answer in answers if len(answer.reply) >= 2]
    if not learnable:
        raise ConfigError(f"{folder} holds no answers to learn from")
    return learnable


def _answer(engine: Engine, prompts: Sequence[Sequence[int]], first: int, asking: Asking) -> list[Answer]:
    """The answers of one shard. first: the number of its first prompt, which determines its seeds."""
    requests = [_request(engine, list(prompt), first + place, asking) for place, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [Answer(request.tokens.copy(), len(request.prompt)) for request in requests]


def _request(engine: Engine, prompt: list[int], number: int, asking: Asking) -> Request:
    room = min(asking.max_len, engine.model.max_model_len)
    kept = np.array(prompt[-(room - 1) :], np.int32)
    return Request(
        id=f"answer-{number}",
        prompt=kept,
        sampling=SamplingParams(
            max_tokens=min(asking.max_tokens, room - len(kept)),
            temperature=asking.temperatures[number % len(asking.temperatures)],
            seed=asking.seed + number,
        ),
        speculation=SpeculationParams(),
        eos_token_ids=engine.model.eos_token_ids,
    )
