"""What becomes of a model between its files and its self-test: rounded weights, and what stands for its parts, its
layers and itself.

Owns the report of that. Knows the table of rules, and when each column is asked. Invariant: nothing that a step
computes has other bits than before, but for rounding that was asked for, and for a device's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from decoding.cache.batch import StepBatch
from decoding.config import Weights
from decoding.model.experts.cpu_experts import TOGETHER, Mixtures
from decoding.model.experts.separate import SERVED
from decoding.model.features import FeatureTap
from decoding.model.layers.stack import Stack, stack_rule
from decoding.model.linear.packed import round_weights
from decoding.model.replacing.replacer import Forwards, Place, Report, replace, replace_one
from decoding.model.replacing.rules import (
    LAYERS,
    Setting,
    functions_on_cpu,
    rules_on_cpu,
    rules_on_device,
    separating_rules,
)
from decoding.model.seam import Seam
from decoding.model.state.state_seam import StateSeam
from decoding.model.step_forward import StepForward
from decoding.weights.linear import num_few_rows
from decoding.weights.rounding import check_rounding


class Preparation:
    """report: what became of the model's modules. mixtures: whose experts run together; None if there are none.

    serves_experts: whether mixtures of experts call our seam from now on, also before anything stands for them.
    """

    def __init__(self, model: PreTrainedModel, serves_experts: bool) -> None:
        self.report = Report()
        self.mixtures: Mixtures | None = None
        self._model = model
        has_experts = serves_experts and any(each.num_found for each in replace(model, [SERVED]).forms)
        self._setting = Setting(model.dtype, has_experts)

    def round(self, weights: Weights) -> str:
        """Round the model's weights; the name of what they have become. Raises ConfigError."""
        check_rounding(weights, self._model.device, self._model.dtype)
        self.report += replace(self._model, separating_rules(self._setting))
        return round_weights(weights, self._model)

    def note_seams(self, seam: Seam, states: StateSeam | None) -> None:
        """Report what is answered by the seams, which the probe has found all of."""
        self.report += Report((seam.replaced,) if states is None else (seam.replaced, states.replaced))

    def place_device_experts(self) -> None:
        """Have Triton's kernels run mixtures of experts."""
        self.report += replace(self._model, rules_on_device(self._setting))

    def replace_parts(self, forward: StepForward, has_states: bool, is_divided: bool) -> None:
        """Replace modules on the CPU by faster ones whose result for a token does not depend on other tokens."""
        self._setting = self._setting._replace(has_states=has_states)
        self.report += (replaced := replace(self._model, rules_on_cpu(self._setting)))
        fused = replaced.stand_ins(TOGETHER)
        self.mixtures = Mixtures(fused) if fused else None
        # Each rank finds by the clock up to how many rows go without oneDNN, and all must pad alike.
        forward.few_rows = 0 if is_divided else num_few_rows(self._model)
        forward.functions |= functions_on_cpu(self._setting)

    def fuse(self, seam: Seam, forward: StepForward, trials: Sequence[StepBatch], taps: Sequence[FeatureTap]) -> None:
        """Fuse layers, and if possible the whole forward, into single calls, where that leaves all bits the same."""
        self.report += replace(self._model, LAYERS.cpu(seam), Forwards(forward.run, trials))
        expected = [forward.run(batch) for batch in trials]

        def has_same_bits(stack: Stack) -> bool:
            forward.call = stack
            is_same = all(map(torch.equal, map(forward.run, trials), expected))
            forward.call = self._model
            return is_same

        self.report += replace_one(Place(forward, "call", self._model), stack_rule(taps, has_same_bits))

    def fuse_on_device(self, seam: Seam, forward: StepForward, trials: Sequence[StepBatch]) -> int:
        """Have layers run in few launches where they then compute the same; how many do."""
        self.report += (replaced := replace(self._model, LAYERS.device(seam), Forwards(forward.run, trials)))
        return sum(len(each.stand_ins) for each in replaced.forms)
