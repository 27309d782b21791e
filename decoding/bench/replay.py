"""Replays recorded replies against any drafter: acceptance lengths without an engine, for tuning drafters.

Owns the recording of a model's replies and the model's top tokens at drafted rows, which it computes
once per path. Knows nothing of time: compare nodes and acceptance lengths here, seconds in the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree
from decoding.costs.price import DraftBudget
from decoding.drafting.registry import start
from decoding.drafting.sources import DraftingStores
from decoding.sampling.verify import walk

NUM_TOP = 10
Row = tuple[NDArray[np.int32], NDArray[np.float32]]


@dataclass
class Recording:
    """One reply. tokens: int32 [t], prompt and output; top: of every position, as the prefill gives it.

    keys_values: per layer, the model's keys and values over all of `tokens`. rows: top tokens by path.
    """

    num_prompt: int
    tokens: NDArray[np.int32]
    top: TopTokens
    keys_values: list[tuple[torch.Tensor, torch.Tensor]]
    rows: dict[tuple[int, ...], Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sums over replayed replies. tau is emitted tokens per step, the prefill's token apart."""

    steps: int
    emitted: int
    drafted: int

    @property
    def tau(self) -> float:
        return self.emitted / max(1, self.steps)

    @property
    def nodes_per_step(self) -> float:
        return self.drafted / max(1, self.steps)


class Replayer:
    """A transformers causal model whose replies are recorded once and replayed under many drafters."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def record(self, prompt: NDArray[np.int32], max_tokens: int, temperature: float = 0.0, seed: int = 0) -> Recording:
        """Generate a reply and keep what a replay needs. prompt: int32 [p]; temperature 0 is greedy."""
        generator = torch.Generator().manual_seed(seed)
        ids, cache, new = list(prompt.tolist()), None, torch.tensor(prompt[None].astype(np.int64))
        for _ in range(max_tokens):
            out = self._model(new, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0, -1]
            if temperature > 0:
                token = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
            else:
                token = int(logits.argmax())
            ids.append(token)
            new = torch.tensor([[token]])
            if token == self._model.config.eos_token_id:
                break
        out = self._model(torch.tensor([ids]), use_cache=True)
        top = _top_tokens(out.logits[0])
        layers = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        return Recording(len(prompt), np.array(ids, np.int32), top, layers)

    def replay(
        self,
        method: str,
        speculation: SpeculationParams,
        budget: int,
        recordings: Iterable[Recording],
        session: DraftingStores,
        temperature: float = 0.0,
    ) -> Outcome:
        """Decode every recording with a fresh drafter over one session; every row is harvested.

        temperature: the one the replies were recorded at, which drafters may look at.
        """
        steps = emitted = drafted = 0
        for recording in recordings:
            sampling = SamplingParams(max_tokens=len(recording.tokens) - recording.num_prompt, temperature=temperature)
            request = Request(
                id="replay", prompt=recording.tokens[: recording.num_prompt], sampling=sampling, speculation=speculation
            )
            drafter = start(method, request, session)
            drafter.observe_prefill(0, _cut(recording.top, recording.num_prompt))
            request.extend(recording.tokens[recording.num_prompt : recording.num_prompt + 1])
            while request.finish_reason is None:
                tree = drafter.propose(DraftBudget(budget))
                top = self._rows(recording, tree, request.num_tokens)
                chosen = top.ids[:, 0].copy()
                _force_recorded(recording, tree, request.num_tokens, chosen)
                verdict = walk(tree, chosen)
                emitted += request.extend(verdict.tokens)
                drafter.observe(tree, verdict, top)
                steps += 1
                drafted += tree.num_drafted
        return Outcome(steps, emitted, drafted)

    def _rows(self, recording: Recording, tree: DraftTree, num_tokens: int) -> TopTokens:
        """The model's top tokens after every node, from the recording where the path follows it."""
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree)):
            paths.append((*paths[tree.parents[node]], int(tree.tokens[node])))
        keys = [(num_tokens, *path) for path in paths]
        if not all(key in recording.rows for key in keys):
            for key, ids, probabilities in self._forward(recording, tree, num_tokens, keys):
                recording.rows[key] = ids, probabilities
        rows = [recording.rows[key] for key in keys]
        return TopTokens(np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows]))

    @torch.inference_mode()
    def _forward(
        self, recording: Recording, tree: DraftTree, num_tokens: int, keys: list[tuple[int, ...]]
    ) -> Iterable[tuple[tuple[int, ...], NDArray[np.int32], NDArray[np.float32]]]:
        cache = DynamicCache()
        past = num_tokens - 1
        for layer, (layer_keys, layer_values) in enumerate(recording.keys_values):
            cache.update(layer_keys[:, :, :past], layer_values[:, :, :past], layer)
        size = len(tree)
        visible = np.zeros((size, size), bool)
        for node in range(size):
            if node:
                visible[node] = visible[tree.parents[node]]
            visible[node, node] = True
        mask = np.concatenate([np.ones((size, past), bool), visible], axis=1)
        out = self._model(
            torch.tensor(tree.tokens[None].astype(np.int64)),
            attention_mask=torch.tensor(mask)[None, None],
            position_ids=torch.tensor(tree.depths()[None].astype(np.int64) + past),
            past_key_values=cache,
        )
        top = _top_tokens(out.logits[0])
        return list(zip(keys, top.ids, top.probabilities, strict=True))


def _top_tokens(logits: torch.Tensor) -> TopTokens:
    values, ids = torch.topk(logits.float().softmax(-1), NUM_TOP)
    return TopTokens(ids.numpy().astype(np.int32), values.numpy())


def _cut(top: TopTokens, length: int) -> TopTokens:
    return TopTokens(top.ids[:length], top.probabilities[:length])


def _force_recorded(recording: Recording, tree: DraftTree, num_tokens: int, chosen: NDArray[np.int32]) -> None:
    """Where a node's path follows the recorded reply, its chosen token is the recorded one."""
    follows = np.zeros(len(tree), bool)
    depths = tree.depths()
    for node in range(len(tree)):
        at = num_tokens - 1 + int(depths[node])
        on_path = node == 0 or bool(follows[tree.parents[node]])
        follows[node] = on_path and at < len(recording.tokens) and recording.tokens[at] == tree.tokens[node]
        if follows[node] and at + 1 < len(recording.tokens):
            chosen[node] = recording.tokens[at + 1]
