"""Answers all sequences' requests of a step on the device, all trees at once.

Gives the same answers as `sampler`, which takes over what the device cannot do: rejection, rows that are not
finite, and rows in which a request's processors leave no token. Invariant: one copy to the device, and one back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import MAX_LOGPROBS, SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import IntArray, Source, Verdict, chain
from decoding.errors import BrokenLogits
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.device.launch import BLOCK, FEWEST_NODES, Kernels, Launcher
from decoding.sampling.device.plan import FEW_TOP, TOKENS_BEFORE, Answers, Plan, plan_step
from decoding.sampling.device.results import Results
from decoding.sampling.law import law_of
from decoding.sampling.logits_processors import processors_of
from decoding.sampling.logprobs import told
from decoding.sampling.sampler import drawn_on_host


class DeviceSampler:
    """block_len: the tokens of the vocabulary that one kernel program reads, a power of two. kernels: Triton's."""

    def __init__(self, block_len: int = BLOCK, kernels: Kernels | None = None) -> None:
        self._block_len, self._kernels = block_len, kernels
        self._launcher: Launcher | None = None  # on the device of the first logits

    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> DeviceDrawing:
        if self._launcher is None:
            self._launcher = Launcher(logits_RV.device, self._block_len, self._kernels)
        return DeviceDrawing(self._launcher, logits_RV, asked, plan_step(asked, logits_RV.shape[1]))

    def warm_up(self, logits_RV: torch.Tensor) -> None:
        """Have the kernels compiled for whatever may be asked of such rows, trees of up to R nodes included."""
        num_nodes = min(FEWEST_NODES, len(logits_RV))
        while True:
            for num_top in (FEW_TOP, MAX_LOGPROBS):
                asked = _everything(num_nodes, num_top, logits_RV.shape[1])
                self.launch(logits_RV[:num_nodes], [asked])
            if num_nodes == len(logits_RV):
                return
            num_nodes = min(2 * num_nodes, len(logits_RV))


def _everything(num_nodes: int, num_top: int, vocab_size: int) -> Asked:
    """A request that has all kernels launched, and a tree."""
    sampling = SamplingParams(max_tokens=1, logprobs=num_top, logit_bias={0: 1.0}, allowed_token_ids=(0,))
    request = Request(
        id="",
        prompt=np.zeros(1, np.int32),
        sampling=sampling,
        speculation=SpeculationParams(),
        eos_token_ids=frozenset(),
    )
    tree = chain(0, np.arange(1, num_nodes, dtype=np.int32) % vocab_size, Source.CONTEXT)
    processors, law = processors_of(request, vocab_size, None), law_of(sampling)
    return Asked(
        request, law, 0, num_nodes, tree, processors, min(num_top, FEW_TOP), request.prompt[:0], 0, request.num_tokens
    )


class DeviceDrawing:
    """One step's answers. num_on_host: how many sequences the host has answered for."""

    def __init__(self, launcher: Launcher, logits_RV: torch.Tensor, asked: Sequence[Asked], plan: Plan) -> None:
        self._launcher = launcher
        self._logits_RV = logits_RV
        self._asked = asked
        self._plan = plan
        self._launched = launcher.launch(plan, logits_RV)
        self._results: Results | None = None
        self.num_on_host = 0

    @property
    def roots(self) -> DeviceDrawing | None:
        """Itself where each sequence has a tree of its root alone, and an answer from here."""
        return self if self._plan.is_plain else None

    @property
    def tokens_B(self) -> torch.Tensor:
        """int32, on the device, of a plain step: what is drawn for each sequence, -1 where nothing can be."""
        return self._launched.tokens_B

    def follow(self, logits_RV: torch.Tensor, places_B: NDArray[np.int64]) -> DeviceDrawing:
        """Start to draw the tokens after these: of the sequences at these places, each from its row of `logits_RV`.
        What remains to be collected here needs no logits."""
        asked = [self._asked[place] for place in places_B.tolist()]
        if not self._plan.ranked:
            return DeviceDrawing(self._launcher, logits_RV, asked, self._plan.following(places_B))
        positions = 1 + self._plan.walks_TX[places_B, TOKENS_BEFORE]
        asked = [
            each._replace(first=row, num_rows=1, num_top=0, prompt_tokens=each.prompt_tokens[:0], position=position)
            for row, (each, position) in enumerate(zip(asked, positions.tolist(), strict=True))
        ]
        return DeviceDrawing(self._launcher, logits_RV, asked, plan_step(asked, logits_RV.shape[1]))

    def collect(self, place: int) -> Drawn:
        results = self._results
        if results is None:
            results = self._results = self._launched.wait()
        asked, answers = self._asked[place], self._plan.answers[place]
        verdict = None if answers.walk is None else results.verdicts[answers.walk]
        if answers.is_on_host or (verdict is None and answers.walk is not None):
            if self._plan.is_plain and asked.processors is None:  # its row may be written over by now
                raise BrokenLogits(int(self._plan.walks_TX[place, TOKENS_BEFORE]))
            self.num_on_host += 1
            return drawn_on_host(asked, self._logits_RV[asked.first : asked.first + asked.num_rows].cpu())
        if not answers.is_ranked:
            return Drawn(verdict, None, None, [])
        rows = slice(answers.ranked, answers.ranked + asked.num_rows)
        top = results.top(rows, min(asked.num_top, self._logits_RV.shape[1])) if asked.num_top else None
        reader = _Logprobs(asked, answers, results, self._logits_RV.shape[1])
        logprobs = None if verdict is None or asked.num_logprobs is None else reader.of_reply(verdict)
        return Drawn(verdict, top, logprobs, reader.of_prompt() if len(asked.prompt_tokens) else [])


class _Logprobs:
    """Reads one sequence's logprobs from the results."""

    def __init__(self, asked: Asked, answers: Answers, results: Results, vocab_size: int) -> None:
        self._asked, self._answers, self._results, self._vocab_size = asked, answers, results, vocab_size

    def of_prompt(self) -> list[TokenLogprobs]:
        tokens = self._asked.prompt_tokens
        places = np.arange(len(tokens), dtype=np.int32)
        return self._told(tokens, self._asked.first_scored + places, places, self._asked.num_prompt_logprobs)

    def of_reply(self, verdict: Verdict) -> list[TokenLogprobs]:
        asked = self._asked
        rows, scored = asked.first_of_tree - asked.first + verdict.path, len(asked.prompt_tokens) + verdict.path
        return self._told(verdict.tokens, rows, scored, asked.num_logprobs or 0)

    def _told(self, tokens: IntArray, rows: IntArray, scored: IntArray, num_top: int) -> list[TokenLogprobs]:
        """The logprobs of tokens that follow some of the sequence's rows. scored: their places among its scores."""
        results, num_top = self._results, min(num_top, self._vocab_size)
        ranked, scored = self._answers.ranked + rows, self._answers.scored + scored
        logits_RK = results.top_logits_HK[ranked]
        norms_R1 = logits_RK[:, :1] + np.log(results.masses_H[ranked, None])
        own_R, ranks = results.own_logits_L[scored] - norms_R1[:, 0], 1 + results.num_higher_L[scored]
        ids_RK = results.top_ids_HK[ranked, :num_top]
        return told(tokens, own_R, ranks.tolist(), ids_RK, logits_RK[:, :num_top] - norms_R1)
