"""Owns the answers that a head learns from: the target's own, many at once, kept in shards on disk.

Does not know heads. Invariant: a shard is complete or missing, and depends only on its prompts, its number and the
seed, so a run that was killed goes on with the missing ones. Who runs out of time leaves out what had not ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoding.core.events import Failed, Finished, Tokens
from decoding.core.files.output import replace_file
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.errors import ConfigError

SHARD_LEN = 64  # answers
HELD_OUT = "held-out-"  # shards' names begin so, of prompts that no head learns
PLAIN = SpeculationParams(method="none", max_nodes=0)


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: int32 [t], a prompt and the target's answer, which starts at `num_prompt`, drawn at `temperature`."""

    tokens: NDArray[np.int32]
    num_prompt: int
    temperature: float = 0.0

    @property
    def reply(self) -> NDArray[np.int32]:
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class Asking:
    """How answers are drawn. temperatures: answers take them in turn. answers: of a prompt. max_tokens: of the answer.
    max_len: of prompt and answer."""

    temperatures: tuple[float, ...] = (0.7, 1.0)
    answers: int = 1
    max_tokens: int = 512
    max_len: int = 2048
    seed: int = 0

    def name(self, model: str, prompts: Sequence[Sequence[int]]) -> str:
        """The name of the folder of these answers. It differs for another model, other prompts or other options."""
        told = repr((Path(model).name, self, [list(prompt) for prompt in prompts]))
        return hashlib.sha256(told.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Work:
    """What a step did. tokens: of answers. products: multiplications of weights with rows, prompts' too. num_bytes: of
    weights, keys and values that it had to read."""

    tokens: int
    products: int
    num_bytes: int


class Writer:
    """Writes the missing shards of a folder, with as many answers at once as the engine runs.

    Answer n is to prompt n modulo their number: all prompts are answered once before the first is answered again.
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[Sequence[int]], asking: Asking, folder: Path, prefix: str = ""
    ) -> None:
        self._engine, self._prompts, self._asking = engine, prompts, asking
        self._folder, self._prefix = folder, prefix
        self.num_answers = len(prompts) * asking.answers
        starts = range(0, self.num_answers, SHARD_LEN)
        self._missing = [first for first in starts if not self._path(first).exists()]
        self._open: dict[int, dict[int, Answer]] = {}  # by a shard's first number, its finished answers by theirs
        self._running: dict[str, tuple[int, Request]] = {}
        self.num_ended = 0
        self._queue = iter([n for first in self._missing for n in self._numbers(first)])

    @property
    def is_done(self) -> bool:
        return not self._missing

    def step(self) -> Work:
        """One step of the engine, with its queue kept full."""
        limits, model = self._engine.limits, self._engine.model
        num_rows = 0
        while len(self._running) < min(2 * limits.max_running, limits.max_open):
            number = next(self._queue, None)
            if number is None:
                break
            request = self._request(number)
            self._running[request.id] = (number, request)
            self._engine.add(request)
            num_rows += len(request.prompt)
        events = self._engine.step().events
        num_tokens = sum(len(event.token_ids) for event in events if isinstance(event, Tokens))
        slots = sum(request.num_tokens for _, request in self._running.values() if request.num_output)
        for event in events:
            if isinstance(event, Finished | Failed):
                self._note(event)
        products = (num_rows + num_tokens) * model.num_parameters
        return Work(num_tokens, products, model.num_bytes + slots * model.bytes_per_slot)

    def give_up(self) -> None:
        """Stop what runs, and write the begun shards with the answers that ended."""
        for request_id in self._running:
            self._engine.abort(request_id)
        self._running.clear()
        for first in [first for first, found in self._open.items() if found]:
            self._write(first)

    def _note(self, event: Finished | Failed) -> None:
        number, request = self._running.pop(event.request_id)
        if isinstance(event, Failed):
            raise ConfigError(f"the model failed on prompt {number % len(self._prompts)}: {event.message}")
        first = number - number % SHARD_LEN
        found = self._open.setdefault(first, {})
        found[number] = Answer(request.tokens.copy(), len(request.prompt), request.sampling.temperature)
        if len(found) == len(self._numbers(first)):
            self._write(first)
        self.num_ended += 1

    def _write(self, first: int) -> None:
        answers = [answer for _, answer in sorted(self._open.pop(first).items())]
        with replace_file(self._path(first)) as file:
            np.savez_compressed(
                file,
                tokens=np.concatenate([answer.tokens for answer in answers]),
                lengths=np.array([len(answer.tokens) for answer in answers], np.int64),
                prompts=np.array([answer.num_prompt for answer in answers], np.int64),
                temperatures=np.array([answer.temperature for answer in answers]),
            )
        self._missing.remove(first)

    def _path(self, first: int) -> Path:
        return self._folder / f"{self._prefix}{first // SHARD_LEN:05d}.npz"

    def _numbers(self, first: int) -> range:
        return range(first, min(self.num_answers, first + SHARD_LEN))

    def _request(self, number: int) -> Request:
        asking, room = self._asking, min(self._asking.max_len, self._engine.model.max_model_len)
        time, place = divmod(number, len(self._prompts))
        kept = np.array(self._prompts[place][-(room - 1) :], np.int32)
        return Request(
            id=f"answer-{self._prefix}{number}",
            prompt=kept,
            sampling=SamplingParams(
                max_tokens=min(asking.max_tokens, room - len(kept)),
                temperature=asking.temperatures[(time + place) % len(asking.temperatures)],
                seed=asking.seed + number,
            ),
            speculation=PLAIN,
            eos_token_ids=self._engine.model.eos_token_ids,
        )


def load_answers(folder: Path, max_len: int, *, held_out: bool = False) -> list[Answer]:
    """All answers of a folder to learn, or those held out, in the order of their numbers, cut to `max_len` tokens.
    Answers with nothing left to learn are skipped. Raises ConfigError if there is none."""
    answers = []
    for path in sorted(folder.glob(f"{HELD_OUT}*.npz" if held_out else "[0-9]*.npz")):
        with np.load(path) as shard:
            ends = np.cumsum(shard["lengths"])
            tokens, starts = shard["tokens"], ends - shard["lengths"]
            for start, end, num_prompt, temperature in zip(
                starts, ends, shard["prompts"], shard["temperatures"], strict=True
            ):
                kept = tokens[start : min(end, start + max_len)]
                answers.append(Answer(kept, int(num_prompt), float(temperature)))
    learnable = [answer for answer in answers if len(answer.reply) >= 2]
    if not learnable:
        raise ConfigError(f"{folder} holds no answers to {'measure' if held_out else 'learn from'}")
    return learnable
