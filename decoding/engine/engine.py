"""The engine: requests in, tokens out, one packed target forward per step. Wiring only; parts do the work.

Runs without a server. Invariant: what a request is given depends on the model, the request and its seed,
never on its neighbours, its drafter or the step it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch

from decoding.cache.batch import StepBatch, pack
from decoding.config import EngineConfig
from decoding.core.request import FinishReason, Request
from decoding.core.stats import EngineStats, RequestStats
from decoding.core.step_result import Emitted, PromptScored, Retired, StepResult
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import root_only
from decoding.core.verdict import Verdict
from decoding.costs.curve import CostCurve
from decoding.drafting import registry as drafters
from decoding.drafting.draft_model.draft_model import DraftModel, load_draft_model
from decoding.drafting.draft_model.seat import DraftCost
from decoding.drafting.registry import StartDrafter
from decoding.drafting.revision import prediction
from decoding.drafting.stand.static_tree import read_tree
from decoding.engine.admission import check_request
from decoding.engine.choosing import Chooser
from decoding.engine.scheduler import Scheduler, Task
from decoding.engine.sequence import Draft, Running
from decoding.engine.tally import StepTally, count_draft
from decoding.engine.tracing import trace_step
from decoding.engine.warm_up import seconds_beside_forwards
from decoding.errors import RequestRejected
from decoding.model.memory import resident_bytes, slots_for
from decoding.model.target_model import TargetModel
from decoding.model.timing import Timing
from decoding.sampling import logits_processors as processing
from decoding.sampling.grammar_matcher import GrammarCompiler
from decoding.sampling.sampling import TreeRows, choose, top_tokens
from decoding.sampling.verify import walk
from decoding.stores.session import SessionStore


def silent(_sentence: str, _fraction: float) -> None:
    """Progress that nobody wants to hear of."""


class Engine:
    """add, abort, step.

    model: ready to run. config: frozen options. on_progress: told of start-up work, a sentence and a
    fraction. draft_model: one that shares the vocabulary of `model`.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        on_progress: Callable[[str, float], None] = silent,
        draft_model: TargetModel | None = None,
    ) -> None:
        started = time.perf_counter()
        self.model = model
        self.config = config
        on_progress("Compiling the drafters", 0.8)
        drafters.warm_up()
        processing.warm_up()
        prediction.warm_up()
        on_progress("Measuring what a row costs on this machine", 0.9)
        self._calibration = Timing(model)
        self._beside = (0.0, 0.0)  # seconds of plain steps beside forwards, and what drafting adds
        num_slots = slots_for(model, config, draft_model)
        self.store = model.new_store(num_slots)
        self.draft_model = DraftModel(draft_model, config, num_slots, model.vocab_size) if draft_model else None
        self._tree = read_tree(config.tree) if config.tree else None
        self._chooser = Chooser(self.draft_model, self._tree)
        self.methods = self._chooser.methods
        self.sessions = self._new_sessions()
        self._grammars = GrammarCompiler(config, model.vocab_size, model.eos_token_ids)
        self._scheduler = self._new_scheduler()
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
        model = TargetModel.load(config, lambda sentence, fraction: on_progress(sentence, 0.7 * fraction))
        draft_model = load_draft_model(config, lambda sentence, fraction: on_progress(sentence, 0.7 + 0.1 * fraction))
        engine = cls(model, config, on_progress, draft_model)
        engine.load_seconds = time.perf_counter() - started
        return engine

    def add(self, request: Request, start_drafter: StartDrafter | None = None) -> None:
        """Queue a request. Raises RequestRejected, naming the field, for what can never be served.

        start_drafter: makes a drafter of the caller's own instead of the method's, for experiments.
        """
        check_request(request, self.config, self.model, self.store)
        self._chooser.check(request.speculation.method)
        if self._scheduler.num_waiting >= self.config.max_waiting:
            raise RequestRejected("the request queue is full", code="queue_full")
        session = self.sessions.open(request.tenant, request.session_id)
        grammar = request.sampling.grammar
        constraint = self._grammars.compile(grammar) if grammar is not None else None
        running = Running(
            request=request,
            session=session,
            stats=RequestStats(prompt_tokens=len(request.prompt)),
            processing=processing.processing_of(request, self.model.vocab_size, constraint),
            prediction=prediction.Prediction(request.prediction) if len(request.prediction) else None,
        )
        self._chooser.start(running, start_drafter)
        self._scheduler.add(running)

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
        self._grow_trees(tasks, tally)
        tally.end_phase("draft_model")
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
            self._commit(draft, verdict, logits_NV[first:end], tally, result)
        tally.end_phase("commit")
        for draft, verdict, top in zip(drafts, verdicts, tops, strict=True):
            draft.observe(verdict, top)
        tally.end_phase("observe")
        self._review(drafts, tally)
        num_prefill_rows = sum(len(draft.lead) for draft in drafts)
        result.stats = tally.stats(batch.num_rows, num_prefill_rows, self.curve)
        return result

    def on_idle(self) -> None:
        """Measure on what steps cost, a moment, while nobody waits."""
        self._calibration.refine()
        if self.draft_model is not None:
            self.draft_model.calibration.refine()
        self._scheduler.set_costs(self.curve, self.draft_curve)

    @property
    def curve(self) -> CostCurve:
        """What a step costs, all in all."""
        forward = self._calibration.curve
        plain, draft = self._beside
        return replace(forward, base=forward.base + plain, draft=draft)

    @property
    def draft_curve(self) -> CostCurve | None:
        """What a forward of the draft model costs, where there is one."""
        return self.draft_model.calibration.curve if self.draft_model else None

    def _warm_up(self) -> None:
        """Run every kind of step once, so that nothing is compiled later, and see what steps cost beside forwards."""
        self._beside = seconds_beside_forwards(self, self.model, has_draft_model=self.draft_model is not None)
        self.sessions = self._new_sessions()
        self._scheduler = self._new_scheduler()
        self._chooser = Chooser(self.draft_model, self._tree)

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.config, self.store, self.curve, self.draft_curve)

    def _new_sessions(self) -> SessionStore:
        config = self.config
        return SessionStore(config.max_sessions, config.session_bytes, config.session_ttl)

    def _grow_trees(self, tasks: list[Task], tally: StepTally) -> None:
        """Let the draft model grow the trees of all that draft with it; whom it refuses another method drafts for."""
        asking = [(task.running, ask) for task in tasks if (ask := task.ask()) is not None]
        if self.draft_model is None or not asking:
            return
        refusals = self.draft_model.draft([ask for _, ask in asking])
        for running, ask in asking:
            if ask.seat in refusals:
                tally.note_refusal(refusals[ask.seat].reason)
                self._chooser.fall_back(running, refusals[ask.seat])

    def _draft(self, task: Task) -> Draft:
        running, drafting, start = task.running, task.running.drafting, task.running.num_committed
        lead = running.request.tokens[start : start + task.num_lead]
        allowed = task.allowance
        cost = drafting.seat.take_cost() if drafting.seat else DraftCost()
        if allowed is None:
            return Draft(running, start, lead, None, cost)
        if allowed.max_nodes == 0:
            return Draft(running, start, lead, root_only(int(running.request.tokens[-1])), cost)
        tree = drafting.drafter.propose(allowed)
        return Draft(running, start, lead, tree, cost, allowed.max_nodes)

    def _top_tokens(self, drafts: list[Draft], logits_NV: torch.Tensor, batch: StepBatch) -> list[TopTokens | None]:
        """What each drafter harvests, taken from the raw logits."""
        tops = []
        for draft, (first, end) in zip(drafts, pairwise(batch.logit_offsets.tolist()), strict=True):
            num_top = draft.running.drafting.drafter.num_top
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
        rows_RV: torch.Tensor,
        tally: StepTally,
        result: StepResult,
    ) -> None:
        """Keep the accepted rows, extend the request, and say what it was given. rows_RV: the draft's raw logits."""
        running, request = draft.running, draft.running.request
        logprobs = draft.logprobs(verdict, rows_RV)
        assert running.handle is not None
        self.store.commit(running.handle, draft.kept_rows(verdict))
        if verdict is None or draft.tree is None:
            running.stats.prefill_chunks += 1
            return
        context = request.num_tokens
        num_emitted = request.extend(verdict.tokens)
        running.note_step(draft.tree, verdict, num_emitted, draft.cost)
        drafted = draft.tree.num_drafted
        method_counts = tally.add(running.drafting.method, context, num_emitted, draft.budget, drafted)
        count_draft((method_counts, running.stats.counts), draft.tree, verdict)
        if request.speculation.trace is not None:
            result.traced.append((request.id, trace_step(running, draft.tree, verdict, draft.tree_rows(rows_RV))))
        if request.sampling.prompt_logprobs is not None and context == len(request.prompt):
            result.scored.append(PromptScored(request.id, running.prompt_logprobs))
        tokens = verdict.tokens[:num_emitted].tolist()
        result.emitted.append(Emitted(request.id, tokens, logprobs and logprobs[:num_emitted]))
        if request.finish_reason is not None:
            self._scheduler.retire(request.id)
            result.retired.append(self._retired(running, request.finish_reason))

    def _review(self, drafts: list[Draft], tally: StepTally) -> None:
        """Note what every method has earned in this step, and let the chooser think again."""
        decoding = [draft for draft in drafts if draft.tree is not None and len(draft.lead) == 0]
        contexts = [draft.start for draft in decoding]
        seconds = tally.seconds - sum(draft.cost.seconds for draft in decoding)
        shares = self.curve.shares([len(draft.tree or ()) for draft in decoding], contexts)
        for draft, share in zip(decoding, shares, strict=True):
            if draft.cost.is_usual:
                draft.running.note_earnings(draft.cost.seconds + share * seconds)
            self._chooser.review(draft.running)

    def _retired(self, running: Running, reason: FinishReason) -> Retired:
        request = running.request
        stop_token_id = int(request.output[-1]) if reason is FinishReason.STOP else None
        return Retired(request.id, reason, running.close(), stop_token_id)

    def stats(self) -> EngineStats:
        """The engine now."""
        draft = self.draft_model
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            slots_used=self.store.used,
            slots_total=self.store.total,
            sessions=len(self.sessions),
            session_bytes=self.sessions.num_bytes,
            resident_bytes=resident_bytes(),
            draft_slots_used=draft.store.used if draft else 0,
            draft_slots_total=draft.store.total if draft else 0,
            draft_bytes=draft.num_bytes if draft else 0,
        )
