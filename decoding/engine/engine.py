"""The engine: requests in, tokens out, one packed target forward per step. Wiring only; parts do the work.

Runs without a server. Invariant: what a request is given depends on the model, the request and its seed,
never on its neighbours, its drafter or the step it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from decoding.cache.batch import pack
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.prefix_index import PrefixIndex
from decoding.cache.top_token_store import TopTokenStore
from decoding.config import EngineConfig
from decoding.core.request import FinishReason, Request
from decoding.core.stats import EngineStats, RequestStats
from decoding.core.step_result import Emitted, PromptScored, Retired, StepResult
from decoding.costs.pricing import Pricing
from decoding.drafting.draft_model.draft_model import DraftModel, load_draft_model
from decoding.drafting.drafting import Drafting
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_model import HeadModel, load_head_model
from decoding.drafting.registry import StartDrafter
from decoding.drafting.stand.static_tree import read_tree
from decoding.engine.admission import check_queue, check_request
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.intake import Intake
from decoding.engine.isolation import Isolation
from decoding.engine.kept_places import kept_places
from decoding.engine.limits import limits_for
from decoding.engine.parts import drafted_parts, step_kind
from decoding.engine.scheduler import Scheduler, Task
from decoding.engine.sequence import RunPart, SequencePart, VerifiedPart
from decoding.engine.step_costs import StepCosts
from decoding.engine.tally import Emission, StepTally, outcome_of
from decoding.engine.tracing import trace_step
from decoding.engine.warm_up import run_first, run_measured
from decoding.model.checkpoint import resolve
from decoding.model.device.runner import Progress, silent
from decoding.model.kept_timings import KeptTimings
from decoding.model.memory import affordable_slots, expected_bytes, resident_bytes, room_for
from decoding.model.target_model import TargetModel
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.compiler import GrammarCompiler
from decoding.sampling.step_sampler import sampler_on
from decoding.stores.session_store import SessionLimits, SessionStore
from decoding.stores.successor_table import NUM_SUCCESSORS

GRAMMAR_PATIENCE = 0.02  # seconds that a step waits for a grammar when nothing else is to be done


class Engine:
    """add, abort, step.

    model: ready to run. config: frozen options. on_progress: told of start-up work, a sentence and a
    fraction. draft_model: one that shares the vocabulary of `model`, or a head of it. kept: of earlier starts. kernels:
    those of drafting, if they may come later.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        on_progress: Progress = silent,
        draft_model: TargetModel | HeadModel | None = None,
        kept: KeptTimings | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        started = time.perf_counter()
        self.model = model
        self.config = config
        on_progress("Compiling the drafters", 0.8)
        self._kernels = kernels or Kernels()
        self._kernels.load_plain()
        self._kernels.load()
        on_progress("Measuring what a token costs on this machine", 0.9)
        self.costs = StepCosts(model, draft_model, kept)
        self.sampler = sampler_on(model.device)
        slot_bytes = sum(each.bytes_per_slot for each in (model, draft_model) if each)
        slot_bytes += TopTokenStore.bytes_per_slot(NUM_SUCCESSORS)
        slots = affordable_slots(config, model.device, slot_bytes)
        self.limits = limits_for(config, self.costs.curve, model.device.type, slots)
        self.room = room_for(model.max_model_len, config, slots, self.limits.max_running)
        self.store = model.new_store(self.room.num_slots // BLOCK_LEN)
        most_keys = self.room.max_model_len + config.max_nodes
        self._runner = model.runner_over(
            self.store, most_keys, progress=lambda sentence, fraction: on_progress(sentence, 0.9 + 0.05 * fraction)
        )
        self.pool = BlockPool(self.store.num_blocks, PrefixIndex() if config.prefix_cache else None)
        self.draft_model: DraftModel | HeadDrafting | None = None
        if isinstance(draft_model, HeadModel):
            self.draft_model = HeadDrafting(draft_model, self.pool, self.limits.max_batch_rows)
        elif draft_model is not None:
            self.draft_model = DraftModel(draft_model, self.pool, self.limits.max_batch_rows, model.vocab_size)
        tree = read_tree(config.tree) if config.tree else None
        self._drafting = Drafting(self.draft_model, self._kernels.has, tree)
        self._tops = TopTokenStore(self.pool, NUM_SUCCESSORS)
        self._grammars = GrammarCompiler(GrammarBuilder(config, model.vocab_size, model.eos_token_ids).build)
        self._start_afresh()
        on_progress("Warming up", 0.95)
        run_first(self, model, draft_model is not None and not self._kernels.missing)
        self._measure_steps()
        self._start_afresh()
        code_bytes = sum(each.code_bytes(self.limits.max_batch_rows) for each in (model, draft_model) if each)
        self.expected_bytes = expected_bytes(model.device, self.room.num_slots * slot_bytes + code_bytes)
        self.load_seconds = time.perf_counter() - started
        self._kernels.load_beside()

    def _measure_steps(self) -> None:
        """What steps take beside their forwards, unless an earlier start learned it: those of plain replies alone while
        the drafters are being compiled."""
        if self.costs.is_measured:
            return
        can_draft = not self._kernels.missing
        with self.sessions.apart():
            most_nodes = self.config.max_nodes if can_draft else 0
            run_measured(self, self.model, most_nodes, can_draft and self.draft_model is not None)
        if can_draft:
            self.costs.end_measuring()
        else:
            self.costs.learn()

    def _start_afresh(self) -> None:
        """Nothing runs, nothing is remembered."""
        config = self.config
        self._pricing = Pricing(config.max_nodes, self.costs)
        self.pool.forget()
        self._scheduler = Scheduler(self.limits, self.pool, self._pricing)
        per_key, in_all = config.session_bytes_per_key, config.session_bytes_in_all
        bounds = config.session_bytes, per_key // config.workers, in_all // config.workers
        self.sessions = SessionStore(SessionLimits(*bounds, config.session_ttl))
        self._unlearnt: list[SequencePart] = []  # of the last step: prompts that go on, which can wait for the next
        self._intake = Intake(self.model.vocab_size, self._drafting, self.sessions, self._grammars.compile)

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        on_progress: Progress = silent,
        kept: KeptTimings | None = None,
        kernels: Kernels | None = None,
    ) -> Engine:
        """Load `config.model` and make an engine of it. Raises ModelRefused or ConfigError."""
        started = time.perf_counter()
        on_progress("Compiling what every reply needs", 0.0)
        kernels = kernels or Kernels()
        kernels.load_plain()
        if resolve(config)[0].attention == "exact":
            kernels.wait_for_attention()
        model = TargetModel.load(config, lambda sentence, fraction: on_progress(sentence, 0.7 * fraction))

        def on_draft_progress(sentence: str, fraction: float) -> None:
            on_progress(sentence, 0.7 + 0.1 * fraction)

        head = load_head_model(config, model, on_draft_progress)
        draft_model = head or load_draft_model(config, on_draft_progress)
        engine = cls(model, config, on_progress, draft_model, kept, kernels)
        engine.load_seconds = time.perf_counter() - started
        return engine

    @property
    def methods(self) -> list[str]:
        """Names of the drafting methods that a request may ask for."""
        return self._drafting.methods

    @property
    def missing_methods(self) -> list[str]:
        """Those of them that are still being compiled: their requests run plain until then."""
        return [method for method in self._kernels.missing if method in self.methods]

    def add(self, request: Request, start_drafter: StartDrafter | None = None) -> None:
        """Queue a request. Raises RequestRejected, naming the field, for what can never be served, or not now.

        start_drafter: makes a drafter of the caller's own instead of the method's, for experiments.
        """
        check_request(request, self.config, self.model.vocab_size, self.room)
        self._drafting.check(request.speculation.method)
        check_queue(request, self.request_ids(), self.limits)
        sequence = self._intake.take_on(request, start_drafter)
        if sequence is not None:
            self._scheduler.add(sequence)

    def abort(self, request_id: str) -> Retired | None:
        """Stop a request and free its blocks at once; None if it is not, or no longer, here."""
        sequence = self._scheduler.retire(request_id)
        if sequence is not None:
            retired = sequence.end(FinishReason.ABORT)
            sequence.drafter.close()
            return retired
        request = self._intake.drop(request_id)
        if request is None:
            return None
        return Retired(request_id, FinishReason.ABORT, RequestStats(prompt_tokens=len(request.prompt)), None)

    @property
    def runs_ahead(self) -> bool:
        """Whether the host has time to itself between a step's launch and its wait."""
        return self.model.device.type != "cpu"

    @property
    def has_work(self) -> bool:
        return self._scheduler.num_running + self._num_waiting > 0

    @property
    def _num_waiting(self) -> int:
        return self._scheduler.num_waiting + len(self._intake)

    def request_ids(self) -> list[str]:
        """Every request that has not ended."""
        return [*(sequence.request.id for sequence in self._scheduler.all()), *self._intake.ids()]

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        """One packed forward over all running sequences. What is raised for one of them ends that one.

        meanwhile: what the caller has to do beside, for which there is time between launch and wait.
        """
        tally, result, isolation = StepTally(), StepResult(), Isolation()
        self._queue_ready(result)
        tasks = self._scheduler.next_tasks()
        if not tasks:
            meanwhile()
            self._intake.wait(GRAMMAR_PATIENCE)
            return result
        tally.end_phase("schedule")
        parts = self._draft(tasks, tally, isolation)
        batch = pack([part.segment() for part in parts], self.store)
        forward = self._runner.launch(batch)
        tally.end_phase("forward")
        borders = list(pairwise(batch.logit_offsets.tolist()))
        asked = [part.asked(first, end - first) for part, (first, end) in zip(parts, borders, strict=True)]
        drawing = self.sampler.launch(forward.logits_RV, asked)
        meanwhile()
        isolation.each(self._unlearnt, self._learn_prompt)
        run = [
            RunPart(part, forward.logits_RV[first:end], drawing, place)
            for place, (part, (first, end)) in enumerate(zip(parts, borders, strict=True))
        ]
        verified = isolation.each(run, RunPart.verify)
        tally.end_sample(forward.stopwatch.seconds())
        if isinstance(self.draft_model, HeadDrafting):
            self.draft_model.keep_features(*kept_places(parts, verified, batch))
        isolation.each(verified, lambda each: each.keep_top(self._tops))
        drafting = [each.part for each in verified if each.part.tree is not None]
        isolation.each(drafting, self._learn_prompt)
        isolation.each(verified, lambda each: self._commit(each, tally, result))
        self._unlearnt = [part for part in parts if part.tree is None]
        tally.end_phase("commit")
        isolation.each(verified, VerifiedPart.observe)
        isolation.each(verified, VerifiedPart.leave)
        tally.end_phase("observe")
        self._note_costs(parts, tally.seconds)
        self.sessions.note_use(part.sequence.drafter.session for part in parts)
        result.broken += isolation.retire_failed(self._scheduler)
        num_prefill_tokens = sum(len(part.chunk) for part in parts)
        result.stats = tally.stats(batch.num_tokens, num_prefill_tokens, self._scheduler.reuse, self.costs.curve)
        return result

    def on_idle(self) -> None:
        """Measure on what steps cost, a moment, while nobody waits."""
        if not self._kernels.missing and not self.has_work:
            self._measure_steps()
        self.costs.refine()

    def _queue_ready(self, result: StepResult) -> None:
        """Let those wait for their turn whose grammar is compiled by now."""
        if len(self._intake) == 0:
            return
        for sequence in self._intake.take_ready(result):
            self._scheduler.add(sequence)

    def _draft(self, tasks: list[Task], tally: StepTally, isolation: Isolation) -> list[SequencePart]:
        """Each sequence's part of the step, its tree drafted."""

        def harvest_rows(task: Task) -> int:
            if task.chunk_len == 0:
                return 0
            drafter = task.sequence.drafter
            is_learnt_from = self.config.prefix_cache or drafter.num_top > 0
            share = drafter.harvest_share(self._pricing.harvests)
            return self._pricing.harvest_rows(share) if is_learnt_from else 0

        parts, proposals = drafted_parts(tasks, self._drafting, isolation, harvest_rows)
        for reason in proposals.refusals:
            tally.note_refusal(reason)
        tally.end_draft(proposals.cost.seconds)
        self.costs.note_draft(*proposals.cost)
        return parts

    def _learn_prompt(self, part: SequencePart) -> None:
        part.sequence.learn_prompt(part.end, self._tops)

    def _commit(self, verified: VerifiedPart, tally: StepTally, result: StepResult) -> None:
        """Keep the accepted rows, extend the sequence, and say what it was given."""
        part, rows_RV, drawn = verified
        sequence, request, verdict = part.sequence, part.sequence.request, drawn.verdict
        sequence.note_prompt_logprobs(drawn.prompt_logprobs)
        assert sequence.rows is not None, request.id
        self.store.commit(sequence.rows, part.kept_rows(verdict))
        if verdict is None or part.tree is None:
            sequence.note_chunk()
            return
        context, method = request.num_tokens, sequence.drafter.active.choice.method
        outcome = outcome_of(part.tree, verdict)
        num_emitted = sequence.commit(part.tree, verdict, outcome, part.cost)
        tally.add(Emission(method, context, num_emitted, part.budget), outcome)
        if request.speculation.trace is not None:
            trace = trace_step(sequence, part.tree, verdict, num_emitted, part.tree_rows(rows_RV).cpu())
            result.traced.append((request.id, trace))
        if request.sampling.prompt_logprobs is not None and context == len(request.prompt):
            result.scored.append(PromptScored(request.id, sequence.prompt_logprobs))
        tokens = verdict.tokens[:num_emitted].tolist()
        result.emitted.append(Emitted(request.id, tokens, drawn.logprobs and drawn.logprobs[:num_emitted]))
        if request.finish_reason is not None:
            result.retired.append(sequence.end(request.finish_reason))
            self._scheduler.retire(request.id)

    def _note_costs(self, parts: list[SequencePart], seconds: float) -> None:
        """Let the next steps be planned, and drafted for, by how long this one took."""
        chains = sum(
            self._pricing.seconds_of_rows(len(part.chunk), part.start, part.sequence.drafter.reads_ahead)
            for part in parts
            if len(part.chunk)
        )
        trees = [part for part in parts if part.tree is not None]
        rows, contexts = [part.num_tokens - len(part.chunk) for part in trees], [part.end for part in trees]
        self._pricing.note_step(seconds, rows, contexts, chains)
        if chains == 0:
            own_seconds = seconds - sum(part.cost.seconds for part in trees)
            self.costs.note_step(step_kind(trees), own_seconds, rows, contexts)

    def stats(self) -> EngineStats:
        """The engine now."""
        draft = self.draft_model
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._num_waiting,
            slots_used=self.pool.num_held * BLOCK_LEN,
            slots_cached=self.pool.num_idle * BLOCK_LEN,
            slots_total=self.room.num_slots,
            sessions=len(self.sessions),
            session_bytes=self.sessions.num_bytes,
            resident_bytes=resident_bytes(),
            draft_bytes=draft.num_bytes if draft else 0,
        )
