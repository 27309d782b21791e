"""The target (or draft) model: loading, checking, and one packed forward per step.

Knows nothing of requests, sampling or trees beyond their packed tokens. Modelling code stays unmodified: the
seam answers its attention calls, and on the CPU linear layers are prepacked.
Invariant: a model that was constructed has passed the probe and the self-test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from decoding.attention.backend import StaticAttention
from decoding.attention.backends import new_backend, tiles_of
from decoding.attention.exact import arithmetic
from decoding.cache.batch import StepBatch
from decoding.cache.kv_format import dtype_of, name_of
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.cache.step_tensors import StepTensors
from decoding.config import EngineConfig
from decoding.costs.exact_cost import ExactCost
from decoding.errors import ConfigError, ModelRefused
from decoding.model.checkpoint import (
    eos_token_ids,
    fingerprint,
    freeze_rope,
    identity,
    max_model_len,
    resolve,
    resolve_attention,
    resolve_kv_dtype,
)
from decoding.model.device.capture import Capture, capture_on
from decoding.model.device.exact_cost import exact_cost
from decoding.model.device.graph_runner import BUCKETS, FIXED_ROWS, GraphRunner, buckets_for
from decoding.model.device.runner import Forward, Progress, Runner, silent, stopwatch_on
from decoding.model.device.static_forward import LEAST_ROWS, StaticForward
from decoding.model.experts.cpu_experts import Mixtures
from decoding.model.features import FeatureTap, LastHidden
from decoding.model.kept.earlier_test import EarlierTest
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.loading import UNPACKED, Packing, load_model
from decoding.model.probe import Probed, probe
from decoding.model.refusal import refusing
from decoding.model.replacing.preparation import Preparation
from decoding.model.replacing.replacer import Report
from decoding.model.replacing.rules import functions_on_device
from decoding.model.seam import SERVING, Seam, set_implementation
from decoding.model.self_test import (
    TOLERANCES,
    SelfTestCase,
    long_chain,
    own_logits,
    self_test,
    self_test_case,
    trial_steps,
)
from decoding.model.shared_parts import SharedParts
from decoding.model.state.sites import Names
from decoding.model.state.state_seam import StateSeam
from decoding.model.step_forward import StepForward
from decoding.model.threads import ThreadChoice, choose_threads, use_threads
from decoding.model.vision.deepstack import Deepstack
from decoding.model.vision.tower import Tower, load_tower
from decoding.weights.linear import num_bytes_in, num_packed_shapes, num_weights_in
from decoding.weights.matrix import arithmetic as product_arithmetic
from decoding.weights.numbers.onednn_floats import can_pack
from decoding.weights.rounding import check_rounding
from decoding.weights.row_counts import code_bytes

# Shape suffixes: M tokens of the step, R tokens that need logits, L those and padding, V vocabulary, E model width.


class TargetModel:
    """A causal language model that runs packed steps.

    is_exact: on this machine a token's logits had the same bits alone, batched and in a tree.
    kv_dtype: of keys and values in its stores.
    fingerprint: changes whenever the same seed might give another reply; identity: changes only with the model.
    is_row_exact: it runs by kernels that are made for this on a GPU, too. exact_cost: what these cost, where that was
    measured to decide it. taps: record its features for draft heads.
    fixed_rows: captured forwards have at least so many tokens.
    ranks: the processes without which it cannot run, if it is divided. shared: what heads may call.
    tower: what makes rows of pictures; None where it takes none, for the reason that `blindness` gives, a clause.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        progress: Progress,
        capture: Capture | None = None,
        packed: Packing = UNPACKED,
        kept: KeptMeasurements | None = None,
    ) -> None:
        """model: in evaluation mode, on its device and in its dtype; its modules will be replaced. config: resolved.

        capture: captures its forwards; None runs them operation by operation. packed: what it was loaded with. kept:
        what earlier starts found.
        """
        self._take_stock(model, config, packed)
        self._preparation = Preparation(model, serves_experts=self.device.type == "cpu" and capture is None)
        if config.weights != "auto":
            progress(f"Rounding weights to {config.weights}", 0.5)
            self.weights = self._preparation.round(config.weights)
            self.num_bytes = num_bytes_in(model)
        progress("Probing the model's attention layers", 0.6)
        freeze_rope(model, self.max_model_len)
        names = Names(model)
        probed = probe(model, names)
        self._states = StateSeam(names, probed.sites, self.device) if probed.sites else None
        self._capture = None if probed.sites else capture
        case, earlier = self_test_case(self.vocab_size), EarlierTest(self.identity, config, self.device, kept)
        expected = own_logits(model, case) if earlier.report is None else []
        self._connect(probed, config)
        self._replace_parts(config, case, progress)
        progress(str(self.replaced), 0.85)
        progress("Testing tree decoding against plain decoding", 0.9)
        report = earlier.report or earlier.keep(self_test(self, case, expected))
        self.is_exact = report.is_exact and self.attention == "exact"
        if not report.on_any_threads:
            self._stay_with_these_threads()
        if config.compile:
            self._compile(progress)

    def _take_stock(self, model: PreTrainedModel, config: EngineConfig, packed: Packing) -> None:
        """Note what the model is before anything of it is replaced."""
        self._model, self.shared = model, SharedParts(model)
        self.device, self.dtype = model.device, model.dtype
        self.num_parameters, self.num_bytes = num_weights_in(model), num_bytes_in(model)
        is_on_cpu = self.device.type == "cpu"
        self.threads = choose_threads(config.threads, self.num_parameters, is_on_cpu, config.num_processes)
        self._usual_threads = self.threads.chosen  # for its size, before anything is measured
        use_threads(self._usual_threads)
        name = str(self.dtype).removeprefix("torch.")
        self.attention, self.weights = config.attention, packed.name or name
        self.kv_dtype = dtype_of(resolve_kv_dtype(config.kv_dtype, self.device, name, self.attention))
        self.max_model_len = max_model_len(model.config, config.max_model_len)
        self.eos_token_ids = eos_token_ids(model)
        self.vocab_size = self.num_logits = model.get_input_embeddings().num_embeddings
        self.identity = identity(model, packed.content)
        self.fixed_rows = FIXED_ROWS
        self.taps: list[FeatureTap] = []
        self.ranks: tuple[int, ...] = ()
        self.tower: Tower | None = None
        self.blindness: str | None = "its tower was not loaded"
        self._new_stopwatch = stopwatch_on(self.device)

    def _connect(self, probed: Probed, config: EngineConfig) -> None:
        """Have our attention answer the model's layers, by kernels that are as exact as the configuration asks."""
        self.layers = tuple(layer for _, layer in probed.layers)
        if self.attention == "triton" and not config.compile:
            self._preparation.place_device_experts()
        self.exact_cost = self._measure_exact(config)
        is_exact = self.exact_cost is not None and self.exact_cost.is_small if config.exact is None else config.exact
        self.is_row_exact = is_exact and self.attention == "triton"  # a CPU's own kernels are anyway
        backend = new_backend(self.attention, self.layers, self.dtype, self.device, self.is_row_exact)
        self._seam = Seam(probed.layers, backend)
        self.fingerprint = self._first_fingerprint(config.tensor_parallel_size)
        set_implementation(self._model, SERVING)
        self._preparation.note_seams(self._seam, self._states)
        self._forward = StepForward(self._model, self._seam, self._states)

    def _replace_parts(self, config: EngineConfig, case: SelfTestCase, progress: Progress) -> None:
        """Put what is quicker in place of the model's modules, layers and whole forward."""
        prepared = self._preparation
        if self._capture is None and can_pack(self.device, self.dtype):
            progress("Packing linear layers", 0.7)
            is_divided = config.tensor_parallel_size > 1
            prepared.replace_parts(self._forward, self._states is not None, is_divided)
            if self.attention == "exact" and not is_divided:  # a fused layer would not add up what other ranks compute
                prepared.fuse(self._seam, self._forward, trial_steps(self, case), self.taps)
        self._forward.functions |= functions_on_device(self.is_row_exact)
        self._static = StaticForward(self._model, self._seam, self._forward.functions)
        if self.attention == "triton" and not config.compile:
            progress("Fusing layers", 0.8)
            if num_fused := prepared.fuse_on_device(self._seam, self._forward, trial_steps(self, case)):
                self.fingerprint = fingerprint(self.device, self.fingerprint, "fused", num_fused)

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress, kept: KeptMeasurements | None = None) -> TargetModel:
        """Load by hub name, folder or "gosling". kept: what earlier starts found. Raises ConfigError and
        ModelRefused."""
        config, folder = resolve(config)
        progress(f"Loading {config.model}", 0.0)
        if torch.device(config.device).type == "cuda":
            torch.cuda.set_device(torch.device(config.device).index or 0)  # Triton launches its kernels here
        dtype = getattr(torch, config.dtype)
        check_rounding(config.weights, torch.device(config.device), dtype)  # before the weights are read
        failure = f"model {config.model!r} cannot be loaded"
        with refusing(failure):
            try:
                model, packed = load_model(folder, config)
            except ConfigError as error:
                raise ConfigError(f"{failure}: {error}") from error
            capture = capture_on(model.device) if config.graphs else None
            target = cls(model.eval(), config, progress, capture, packed, kept)
        progress("Loading what sees pictures", 0.95)
        target._see_with(*load_tower(folder, config, model, target._usual_threads))
        return target

    @classmethod
    def from_model(cls, model: PreTrainedModel, config: EngineConfig, capture: Capture | None = None) -> TargetModel:
        """Wrap a model in memory, on its own device and in its own dtype, whatever the configuration says."""
        name = str(model.dtype).removeprefix("torch.")
        attention = resolve_attention(config.attention, model.device.type, name)
        return cls(model.eval(), replace(config, attention=attention), silent, capture)

    def _see_with(self, tower: Tower | None, blindness: str | None) -> None:
        if tower is not None and tower.depth:
            if self._static.is_compiled:  # hooks would have it compiled anew
                tower, blindness = None, "its layers are given more of a picture than embeddings, and are compiled"
            else:
                width = int(self.shared.config.hidden_size)
                self._forward.deepstack = Deepstack(self._model, self.num_layers, width, tower.depth)
        self.tower, self.blindness = tower, blindness
        if tower is not None:
            self._stay_with_these_threads()  # which the tower has beside it, since libraries keep one number for both
            self.num_bytes += tower.num_bytes
            self.fingerprint = fingerprint(self.device, self.fingerprint, tower.identity)

    @property
    def replaced(self) -> Report:
        """What stands for which of the model's modules, and why nothing does for others."""
        return self._preparation.report

    @property
    def mixtures(self) -> Mixtures | None:
        """Of experts that run together; None if there are none."""
        return self._preparation.mixtures

    def _first_fingerprint(self, num_ranks: int) -> str:
        """Of what shapes logits before the self-test has said more."""
        tiles = tiles_of(self.attention, self.layers, self.dtype, self.device)
        keys = arithmetic(self.kv_dtype) if self.attention == "exact" else name_of(self.kv_dtype)
        parts = [self.identity, self.weights, self.attention, keys, tiles, self._capture is not None]
        parts += [product_arithmetic(self.dtype)] if self.device.type == "cpu" else []
        parts += ["exact"] if self.is_row_exact else []
        parts += [num_ranks] if num_ranks > 1 else []
        return fingerprint(self.device, *parts)

    def _measure_exact(self, config: EngineConfig) -> ExactCost | None:
        """What exact products cost, where the configuration leaves it to that: on a GPU, in captured forwards of one
        process. Others would not decide alike, or have other kernels."""
        is_open = config.exact is None and self.device.type == "cuda" and self.attention == "triton"
        if self._capture is None or not is_open or config.compile or config.tensor_parallel_size > 1:
            return None
        return exact_cost(self._model, self._model.get_output_embeddings(), self._capture, self._new_stopwatch)

    def is_same_on_any_threads(self) -> bool:
        """Whether a chain's logits have the same bits on any number of threads."""
        batch, logits = long_chain(self), []
        for count in self.threads.candidates:
            use_threads(count)
            logits.append(self._run(batch))
        return all(torch.equal(logits_RV, logits[0]) for logits_RV in logits)

    def _stay_with_these_threads(self) -> None:
        """Fix the number of threads and add it to the fingerprint: replies may depend on it on this processor. It is
        the usual one, which every start has, not what was quickest just now."""
        count = self._usual_threads
        self.threads = ThreadChoice([count], count)
        self.fingerprint = fingerprint(self.device, self.fingerprint, count)

    def code_bytes(self, most_rows: int) -> int:
        """The bytes of code that oneDNN will keep for forwards of up to `most_rows` tokens."""
        return code_bytes(num_packed_shapes(self._model), self._forward.few_rows or 0, most_rows)

    @property
    def bytes_per_slot(self) -> int:
        return bytes_per_slot(self.layers, self.kv_dtype)

    @property
    def state_bytes(self) -> int:
        """What a sequence's layers carry from token to token; 0 if they carry nothing."""
        return 0 if self._states is None else self._states.shape.num_bytes(self.dtype)

    @property
    def num_layers(self) -> int:
        """Of the decoder, attending or not: what a head counts when it names those that it reads."""
        if self._states is None:
            return len(self.layers)
        return int(self.shared.config.num_hidden_layers)

    def tap(self, layers: Sequence[int]) -> FeatureTap:
        """Record these layers' inputs from the next forward on. Raises ModelRefused if the layers cannot be found."""
        tap = FeatureTap(self._model, self.num_layers, layers)
        self.taps.append(tap)
        return tap

    @contextmanager
    def tapped(self, layers: Sequence[int]) -> Iterator[FeatureTap]:
        """Record these layers' inputs inside the block, in forwards that run operation by operation. Raises
        ModelRefused as `tap` does, where the forward is compiled, and where other processes would have to run it."""
        if self._static.is_compiled:
            raise ModelRefused("the forward is compiled")
        if self.ranks:
            raise ModelRefused("the model is divided among processes")
        tap = FeatureTap(self._model, self.num_layers, layers)
        try:
            yield tap
        finally:
            tap.close()

    def last_hidden(self) -> LastHidden:
        """Record the last hidden states from the next forward on. Raises ModelRefused where they cannot be found, or
        the forward is compiled, which a hook would have compiled anew."""
        norm = self.shared.last_norm
        if norm is None:
            raise ModelRefused("its last norm cannot be found")
        if self._static.is_compiled:
            raise ModelRefused("its forward is compiled")
        return LastHidden(self.tap([self.num_layers]), norm, int(self.shared.config.hidden_size))

    def new_store(self, num_blocks: int) -> KvStore:
        """An empty store of `num_blocks` blocks."""
        return KvStore(self.layers, num_blocks, self.kv_dtype, self.device, self._states, state_dtype=self.dtype)

    def runner_over(
        self, store: KvStore, most_keys: int, most_rows: int = BUCKETS[-1], progress: Progress = silent
    ) -> Runner:
        """A runner of captured forwards over an empty store; the model itself if they cannot be captured.

        most_keys: the most keys of a segment. most_rows: the most tokens of a captured forward.
        """
        attention = self._seam.backend
        if self._capture is None or not isinstance(attention, StaticAttention):
            return self
        least_rows = max(self.fixed_rows, LEAST_ROWS if self._static.is_compiled else 1)
        buckets = buckets_for(most_rows, least_rows)
        runner = GraphRunner(self, attention, store, most_keys, buckets)
        return runner if runner.try_capture(self._capture, progress) else self

    def launch(self, batch: StepBatch) -> Forward:
        """Run a step's forward operation by operation, over any store."""
        use_threads(self.threads.count)
        if self.device.type != "cpu":
            stopwatch = self._new_stopwatch()
            logits_RV = self._run_on_device(batch)
            stopwatch.stop()
            return Forward(logits_RV, stopwatch.seconds)
        started = time.perf_counter()
        logits_RV = self._run(batch)
        seconds = time.perf_counter() - started
        self.threads.observe(batch.num_tokens, seconds)
        return Forward(logits_RV, lambda: seconds)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """float32 [R, V]: logits of the tokens `batch.logit_rows_R`. Stores all tokens' keys and values."""
        return self.launch(batch).logits_RV

    def _run(self, batch: StepBatch) -> torch.Tensor:
        return self._forward.run(batch)

    def _run_on_device(self, batch: StepBatch) -> torch.Tensor:
        """The same, compiled if it is."""
        if not self._static.is_compiled or batch.num_tokens < LEAST_ROWS or batch.embedded:
            return self._run(batch)
        step: StepTensors = self._seam.backend.prepare(batch)
        return self._static.run(step)[: len(batch.logit_rows_R)].float().contiguous()

    def run_static(self, step: StepTensors) -> torch.Tensor:
        """[L, V]: logits of the tokens `logit_rows_L`, in the model's dtype. Copies nothing to the host."""
        return self._static.run(step)

    def _compile(self, progress: Progress) -> None:
        """Compile the forwards that will be captured, or report why they stay eager."""
        progress("Compiling the model", 0.95)
        attention, batch = self._seam.backend, long_chain(self)
        try:
            if self._capture is None or not isinstance(attention, StaticAttention):
                raise ModelRefused(f"only captured forwards are compiled; with attention {self.attention} none are")
            if self.is_row_exact:
                raise ModelRefused("with --exact it is computed by kernels that no compiler may change")
            self._static.compile(attention.prepare(batch), self._run(batch), TOLERANCES[self.dtype])
            self.fingerprint = fingerprint(self.device, self.fingerprint, "compiled")
        except ModelRefused as refused:
            progress(f"The model runs as it is: {refused}", 0.95)
