"""The seam of layers that carry a state: the functions that unmodified modelling code calls while a step runs.

A step reads the state of each sequence and writes the one after its certain rows, and what a checkpoint keeps on the
way. Of its candidates it keeps what they brought, and a commit runs those that were accepted again, by the same walk.
Invariant: a forward changes no state that it started from, so that it may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from decoding.cache.batch import StepBatch
from decoding.cache.state_pool import SequenceState
from decoding.core.tree import IntArray
from decoding.kernels.cpu.states.order import Walk
from decoding.model.replacing.replacer import Replaced
from decoding.model.replacing.row_safe import RowSafeActivation
from decoding.model.state.convolution import convolve, slide
from decoding.model.state.rule_rows import RuleRows, delta_rows, mamba_1_rows, mamba_2_rows
from decoding.model.state.sites import (
    CONVOLUTION,
    DELTA,
    KIMI_DELTA,
    MAMBA_1,
    MAMBA_2,
    Names,
    Site,
    head_width,
    state_shape,
)
from decoding.model.state.walk import CompiledWalk, Job, ReferenceWalk, StepWalk, chain_walk, fits, walk_of

# Shape suffixes: N tokens and padding, M tokens of the step, C channels, W inputs that a convolution looks back at,
# H heads, V value width, B segments.


class Walking(Protocol):
    """What walks recurrences: see `ReferenceWalk`."""

    def run(self, jobs: Sequence[Job], walk: Walk, num_scratch: int = 0) -> list[torch.Tensor]: ...


@dataclass(slots=True)
class KeptRows:
    """What the candidates of a step brought: inputs of each convolution, [candidates, C], and rows of each
    recurrence."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    rules: list[RuleRows] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeptStep:
    """Of one sequence: its certain rows, and where its candidates begin among all that the step kept."""

    num_certain: int
    first: int
    rows: KeptRows


class StateSeam:
    """names: of the model's sites. sites: in calling order. device: that the model runs on. replaced: for a report."""

    def __init__(self, names: Names, sites: list[Site], device: torch.device) -> None:
        self.shape = state_shape(sites)
        self.replaced = Replaced("calls of states answered", len(sites), tuple(sites))
        self._names, self._sites = names, sites
        is_compiled = device.type == "cpu" and fits(self.shape.matrices)
        self._walk: Walking = CompiledWalk() if is_compiled else ReferenceWalk()
        self._places: list[int] = []  # of each site among the windows, or among the matrices
        for place, site in enumerate(sites):
            is_window = site.name == CONVOLUTION
            self._places.append(sum((before.name == CONVOLUTION) is is_window for before in sites[:place]))
        self._activations: dict[str, nn.Module] = {}
        self._step: StepWalk | None = None
        self._kept = KeptRows()
        self._candidates = torch.empty(0, dtype=torch.int64)
        self._num_called = 0
        self._functions: dict[str, Callable[..., Any]] = {
            CONVOLUTION: self._convolve,
            DELTA: self._run_delta,
            KIMI_DELTA: self._run_delta,
            MAMBA_1: self._run_mamba_1,
            MAMBA_2: self._run_mamba_2,
        }

    @contextmanager
    def running(self, batch: StepBatch) -> Iterator[None]:
        """Inside the block, the model's layers run the states of these segments."""
        self._step, self._kept, self._num_called = walk_of(batch), KeptRows(), 0
        self._candidates = torch.from_numpy(self._step.candidates)
        with self._names.bound(self._functions):
            yield
        assert self._num_called == len(self._sites), (self._num_called, len(self._sites))
        first = 0
        for place, (state, num_certain) in enumerate(batch.carried):
            state.kept = KeptStep(num_certain, first, self._kept)
            first += int(batch.offsets[place + 1] - batch.offsets[place]) - num_certain
        self._step = None

    def commit(self, state: SequenceState, path: IntArray) -> None:
        """As of `CarriedStates`."""
        kept: KeptStep = state.kept
        num_certain = kept.num_certain
        assert len(path) >= num_certain, "a commit keeps the certain rows"
        if num_certain == 0:  # nothing was walked to the next state
            for back, front in zip(state.back.matrices, state.front.matrices, strict=True):
                back.copy_(front)
        state.pool.advance(state, num_certain)
        accepted = path[num_certain:].astype(np.int64) - num_certain + kept.first
        if len(accepted):
            self._replay(state, kept.rows, accepted)
        state.kept = None

    def _replay(self, state: SequenceState, kept: KeptRows, accepted: Any) -> None:
        """Run accepted candidates again, on the state that the certain rows led to."""
        assert state.front.num_holders == 1, "a shared state is not written"
        walk, rows = chain_walk(accepted), torch.from_numpy(accepted)
        for window_WC, inputs in zip(state.front.windows, kept.inputs, strict=True):
            slide(window_WC, window_WC, inputs[rows.to(inputs.device)])
        matrices = state.front.matrices
        self._walk.run([Job(rule, [matrix]) for rule, matrix in zip(kept.rules, matrices, strict=True)], walk)

    @property
    def _running(self) -> StepWalk:
        assert self._step is not None, "the model was called outside of a step"
        return self._step

    def _next_place(self, name: str) -> int:
        site, place = self._sites[self._num_called], self._places[self._num_called]
        assert site.name == name, (site.name, name)
        self._num_called += 1
        return place

    def _convolve(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """[1, C, N] to [1, C, N]: each row from its own and its nearest ancestors' inputs. weight: [C, W + 1]."""
        place, step = self._next_place(CONVOLUTION), self._running
        num_rows, width = step.batch.num_tokens, weight.shape[1] - 1
        inputs_MC = hidden_states[0].T[:num_rows]
        windows = [state.front.windows[place] for state, _ in step.batch.carried]
        self._slide_windows(inputs_MC, place)
        self._kept.inputs.append(inputs_MC[self._candidates.to(inputs_MC.device)])
        out_MC = convolve(inputs_MC, torch.stack(windows), step.inputs(width), weight, bias)
        if activation is not None:
            out_MC = self._activation(activation)(out_MC)
        num_padding = hidden_states.shape[2] - num_rows
        out_NC = F.pad(out_MC, (0, 0, 0, num_padding)) if num_padding else out_MC
        return out_NC.T[None].to(hidden_states.dtype)

    def _slide_windows(self, inputs_MC: torch.Tensor, place: int) -> None:
        batch = self._running.batch
        for (state, num_certain), first in zip(batch.carried, batch.offsets[:-1].tolist(), strict=True):
            before = state.front.windows[place]
            for mark in state.marks:
                slide(mark.state.windows[place], before, inputs_MC[first : first + mark.num_rows])
            slide(state.back.windows[place], before, inputs_MC[first : first + num_certain])

    def _activation(self, name: str) -> nn.Module:
        if name not in self._activations:
            self._activations[name] = RowSafeActivation(ACT2FN[name])
        return self._activations[name]

    def _run_delta(self, *arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
        name = self._sites[self._num_called].name
        assert name in (DELTA, KIMI_DELTA), name
        out_NHV = self._read(name, delta_rows(*arguments, **named))
        return out_NHV[None].to(arguments[0].dtype), None

    def _run_mamba_2(
        self, hidden_states: torch.Tensor, *arguments: Any, D: torch.Tensor | None = None, **named: Any
    ) -> torch.Tensor:
        out_NHV = self._read(MAMBA_2, mamba_2_rows(hidden_states, *arguments[:4], **named))
        if D is not None:
            out_NHV = out_NHV + D[:, None].float() * hidden_states[0].float()
        return out_NHV[None]

    def _run_mamba_1(
        self,
        hidden_states: torch.Tensor,
        *arguments: Any,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        **named: Any,
    ) -> torch.Tensor:
        width = head_width(hidden_states.shape[1])
        out_NHV = self._read(MAMBA_1, mamba_1_rows(hidden_states, *arguments, width=width, **named))
        out_1DN = out_NHV.flatten(1).T[None]
        if D is not None:
            out_1DN = out_1DN + hidden_states * D[None, :, None]
        return out_1DN if z is None else out_1DN * self._activation("silu")(z)

    def _read(self, name: str, rows: RuleRows) -> torch.Tensor:
        place, step = self._next_place(name), self._running
        self._kept.rules.append(rows.take(self._candidates.to(rows.value_NHV.device)))
        job = Job(rows, [state.matrices[place] for state in step.states])
        return self._walk.run([job], step.walk, step.num_scratch)[0]
