"""The engine: requests in, tokens out, one packed target forward per step. Wiring only; parts do the work.

Runs without a server. Invariant: what a request is given depends on the model, the request and its seed,
never on its neighbours, its drafter or the step it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from decoding import drafters, prediction, processing
from decoding.batch import StepBatch, pack
from decoding.calibrate import measure_cost_curve
from decoding.config import EngineConfig
from decoding.constraint import GrammarCompiler
from decoding.drafters import Drafter, TopTokens
from decoding.drafters.revised import revise
from decoding.errors import RequestRejected
from decoding.memory import resident_bytes, slots_for
from decoding.model import TargetModel
from decoding.request import FinishReason, Request, SamplingParams, SpeculationParams
from decoding.running import Draft, Running
from decoding.sampling import TreeRows, choose, top_tokens
from decoding.scheduler import Scheduler, Task
from decoding.session import SessionStore
from decoding.static_tree import read_tree
from decoding.stats import EngineStats, RequestStats
from decoding.step_result import Emitted, PromptScored, Retired, StepResult
from decoding.tally import StepTally, count_draft
from decoding.token_logprobs import TokenLogprobs
from decoding.tree import Source, root_only
from decoding.verify import Verdict, walk

WARM_UP_TOKENS = 12


def silent(_sentence: str, _fraction: float) -> None:
    """Progress that nobody wants to hear of."""


class Engine:
    """add, abort, step.

    model: ready to run. config: frozen options. on_progress: told of start-up work, a sentence and a
    fraction.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        on_progress: Callable[[str, float], None] = silent,
    ) -> None:
        started = time.perf_counter()
        self.model = model
        self.config = config
        self.methods = list(drafters.METHODS)
        on_progress("Compiling the drafters", 0.8)
        drafters.warm_up()
        processing.warm_up()
        prediction.warm_up()
        on_progress("Measuring what a row costs on this machine", 0.9)
        self.curve = measure_cost_curve(model)
        self.store = model.new_store(slots_for(model, config))
        self._tree = read_tree(config.tree) if config.tree else None
        self.sessions = self._new_sessions()
        self._grammars = GrammarCompiler(config, model.vocab_size, model.eos_token_ids)
        self._scheduler = Scheduler(config, self.store, self.curve)
        on_progress("Warming up", 0.95)
        self._warm_up()
        self.load_seconds = time.perf_counter() - started

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        on_progress: Callable[[str, float], None] = silent,
    ) -> Engine:
        """Load `config.model` and make an engine of it. Raises ModelRefused or ConfigError."""
        started = time.perf_counter()
        model = TargetModel.load(config, lambda sentence, fraction: on_progress(sentence, 0.8 * fraction))
        engine = cls(model, config, on_progress)
        engine.load_seconds = time.perf_counter() - started
        return engine

    def add(self, request: Request, drafter: Drafter | None = None) -> None:
        """Queue a request. Raises RequestRejected, naming the field, for what can never be served.

        drafter: one of the caller's own instead of the registry's, for experiments.
        """
        self._check(request)
        session = self.sessions.open(request.tenant, request.session_id)
        method, reason = drafters.resolve(request.speculation.method, request.sampling.temperature, session.sampled)
        grammar = request.sampling.grammar
        constraint = self._grammars.compile(grammar) if grammar is not None else None
        rows = processing.processing_of(request, self.model.vocab_size, constraint)
        predicted = prediction.Prediction(request.prediction) if len(request.prediction) else None
        drafter = drafter or drafters.start(method, request, session)
        self._scheduler.add(
            Running(
                request=request,
                session=session,
                drafter=revise(drafter, request, predicted, rows),
                processing=rows,
                prediction=predicted,
                default_nodes=drafters.METHODS[method].default_nodes,
                stats=RequestStats(method=method, reason=reason, prompt_tokens=len(request.prompt)),
            )
        )

    def abort(self, request_id: str) -> Retired | None:
        """Stop a request and free its slots at once; None if it is not, or no longer, here."""
        running = self._scheduler.retire(request_id)
        return self._retired(running, FinishReason.ABORT) if running else None

    @property
    def has_work(self) -> bool:
        return self._scheduler.num_running + self._scheduler.num_waiting > 0

    def request_ids(self) -> list[str]:
        """Every request that has not ended."""
        return [running.request.id for running in self._scheduler.all()]

    def step(self) -> StepResult:
        """One packed forward over all running requests."""
        tally = StepTally()
        tasks = self._scheduler.next_tasks()
        if not tasks:
            return StepResult()
        tally.end_phase("schedule")
        drafts = [self._draft(task) for task in tasks]
        tally.end_phase("draft")
        batch = pack([draft.segment() for draft in drafts], self.store)
        logits_NV = self.model.forward(batch)
        tally.end_phase("forward")
        tops = self._top_tokens(drafts, logits_NV, batch)
        verdicts = self._verify(drafts, logits_NV, batch)
        tally.end_phase("sample")
        result = StepResult()
        for draft, verdict, (first, end) in zip(drafts, verdicts, pairwise(batch.logit_offsets.tolist()), strict=True):
            self._commit(draft, verdict, draft.logprobs(verdict, logits_NV[first:end]), tally, result)
        tally.end_phase("commit")
        for draft, verdict, top in zip(drafts, verdicts, tops, strict=True):
            draft.observe(verdict, top)
        tally.end_phase("observe")
        num_prefill_rows = sum(len(draft.lead) for draft in drafts)
        result.stats = tally.stats(batch.num_rows, num_prefill_rows, self.curve)
        return result

    def _warm_up(self) -> None:
        """Run every kind of step once, and add to the cost curve what plain steps and drafting cost beside forwards."""
        num_tokens = min(WARM_UP_TOKENS, self.model.max_model_len // 2)
        prompt = np.arange(num_tokens, dtype=np.int32) % self.model.vocab_size
        beside: dict[bool, list[float]] = {False: [], True: []}  # seconds of steps that drafted or did not
        kinds = (("auto", 0.0, "match"), ("auto", 1.0, "match"), ("stand", 1.0, "rejection"), ("none", 0.0, "match"))
        for method, temperature, verification in kinds:
            sampling = SamplingParams(max_tokens=num_tokens, temperature=temperature, top_p=0.9, ignore_eos=True)
            speculation = SpeculationParams(method=method, verification=verification)
            self.add(Request(id="", prompt=prompt, sampling=sampling, speculation=speculation))
            while self.has_work:
                stats = self.step().stats
                if stats is not None and stats.prefill_rows == 0:
                    beside[stats.rows > 1].append(stats.step_seconds - stats.phase_seconds["forward"])
        plain = min(beside[False], default=0.0)
        draft = max(0.0, min(beside[True], default=plain) - plain)
        self.curve = replace(self.curve, base=self.curve.base + plain, draft=draft)
        self.sessions = self._new_sessions()
        self._scheduler = Scheduler(self.config, self.store, self.curve)

    def _new_sessions(self) -> SessionStore:
        config = self.config
        return SessionStore(config.max_sessions, config.session_bytes, config.session_ttl, tree=self._tree)

    def _draft(self, task: Task) -> Draft:
        running = task.running
        start = running.num_committed
        lead = running.request.tokens[start : start + task.num_lead]
        allowed = task.allowance
        if allowed is None:
            return Draft(running, start, lead, None)
        if allowed.max_nodes == 0:
            return Draft(running, start, lead, root_only(int(running.request.tokens[-1])), is_plain=True)
        return Draft(running, start, lead, running.drafter.propose(allowed.max_nodes, allowed.min_chance))

    def _top_tokens(self, drafts: list[Draft], logits_NV: torch.Tensor, batch: StepBatch) -> list[TopTokens | None]:
        """What each drafter harvests, taken from the raw logits."""
        tops = []
        for draft, (first, end) in zip(drafts, pairwise(batch.logit_offsets.tolist()), strict=True):
            num_top = draft.running.drafter.num_top
            tops.append(top_tokens(logits_NV[first:end], num_top) if draft.is_harvested else None)
        return tops

    def _verify(self, drafts: list[Draft], logits_NV: torch.Tensor, batch: StepBatch) -> list[Verdict | None]:
        """Draw the target's own token wherever a walk can come, and walk every tree."""
        trees = [
            TreeRows(draft.running.request, draft.tree, int(end) - len(draft.tree), draft.running.root_processing())
            for draft, end in zip(drafts, batch.logit_offsets[1:], strict=True)
            if draft.tree is not None
        ]
        if not trees:
            return [None] * len(drafts)
        chosen = iter(choose(logits_NV, trees))
        return [None if draft.tree is None else walk(draft.tree, next(chosen)) for draft in drafts]

    def _commit(
        self,
        draft: Draft,
        verdict: Verdict | None,
        logprobs: list[TokenLogprobs] | None,
        tally: StepTally,
        result: StepResult,
    ) -> None:
        """Keep the accepted rows, extend the request, and say what it was given."""
        running, request = draft.running, draft.running.request
        assert running.handle is not None
        self.store.commit(running.handle, draft.kept_rows(verdict))
        if verdict is None or draft.tree is None:
            running.stats.prefill_chunks += 1
            return
        context = request.num_tokens
        num_emitted = request.extend(verdict.tokens)
        running.note_step(draft.tree, verdict, num_emitted)
        method_counts = tally.add(running.stats.method, context, num_emitted)
        count_draft((method_counts, running.stats.counts), draft.tree, verdict)
        sources = [*draft.tree.sources[verdict.path[1:]].tolist(), int(Source.BONUS)]
        if request.sampling.prompt_logprobs is not None and context == len(request.prompt):
            result.scored.append(PromptScored(request.id, running.prompt_logprobs))
        tokens = verdict.tokens[:num_emitted].tolist()
        result.emitted.append(Emitted(request.id, tokens, sources[:num_emitted], logprobs and logprobs[:num_emitted]))
        if request.finish_reason is not None:
            self._scheduler.retire(request.id)
            result.retired.append(self._retired(running, request.finish_reason))

    def _retired(self, running: Running, reason: FinishReason) -> Retired:
        request = running.request
        stop_token_id = int(request.output[-1]) if reason is FinishReason.STOP else None
        return Retired(request.id, reason, running.close(), stop_token_id)

    def _check(self, request: Request) -> None:
        request.validate(self.model.vocab_size)
        drafters.check(request.speculation)
        max_nodes = request.speculation.max_nodes or 0
        if max_nodes > self.config.max_nodes:
            raise RequestRejected(
                f"speculation.max_nodes is {max_nodes}, this server allows {self.config.max_nodes}",
                param="speculation.max_nodes",
            )
        if request.max_total > self.model.max_model_len:
            raise RequestRejected(
                f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.sampling.max_tokens}, "
                f"together more than the model's {self.model.max_model_len}",
                param="prompt",
                code="context_length_exceeded",
            )
        if self._scheduler.room_needed(request) > self.store.total:
            raise RequestRejected(
                f"the request needs {self._scheduler.room_needed(request)} slots of KV cache, "
                f"the server has {self.store.total}",
                param="max_tokens",
            )
        if self._scheduler.num_waiting >= self.config.max_waiting:
            raise RequestRejected("the request queue is full", code="queue_full")

    def stats(self) -> EngineStats:
        """The engine now."""
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            slots_used=self.store.used,
            slots_total=self.store.total,
            sessions=len(self.sessions),
            session_bytes=self.sessions.num_bytes,
            resident_bytes=resident_bytes(),
        )
