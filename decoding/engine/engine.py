"""The engine: requests in, tokens out, one packed target forward per step. Wiring only; parts do the work.

Runs without a server. Invariant: what a request is given depends on the model, the request and its seed,
never on its neighbours, its drafter or the step it runs in.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from decoding.cache.batch import pack
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished, Pooled, PromptLogprobs, PromptProgress, Tokens
from decoding.core.request import FinishReason, Request
from decoding.core.stats import EngineStats, RequestStats
from decoding.costs.credit import losses
from decoding.costs.pricing import Pricing, Rate
from decoding.drafting.kept_worth import KeptWorth
from decoding.drafting.registry import StartDrafter
from decoding.engine.ahead.roots import LaunchedStep, RootsAhead
from decoding.engine.intake import Intake, RowSources, check_pictures, check_queue, check_request
from decoding.engine.isolation import Isolation
from decoding.engine.resources import Resources
from decoding.engine.scheduler import Reuse, Scheduler
from decoding.engine.sequence import namespace_of
from decoding.engine.sequence_step import SequenceStep, note_places, progress_of
from decoding.engine.step_result import StepResult
from decoding.engine.tally import StepTally, outcome_of
from decoding.engine.tracing import trace_step
from decoding.model.refusal import is_device_error
from decoding.process.machine import resident_bytes
from decoding.stores.session_store import SessionLimits, SessionStore

GRAMMAR_PATIENCE = 0.02  # seconds that a step waits for a grammar when nothing else is to be done
SESSIONS_NOTED_EVERY = 16  # steps

Announce = Callable[[list[str], list[PromptProgress]], None]  # the requests' ids, and how far prompts are that go on


class Engine:
    """add, abort, step. Made by `start`. worth: of the draft model, as it was learned before; load_seconds: what the
    start took."""

    def __init__(self, resources: Resources, worth: KeptWorth) -> None:
        self.model, self.config = resources.model, resources.config
        self.costs, self.limits, self.room = resources.costs, resources.limits, resources.room
        self.store, self.pool, self._tops = resources.store, resources.pool, resources.tops
        self.sampler, self._runner, self.exactness = resources.sampler, resources.runner, resources.exactness
        self.is_exact = self.model.is_exact or self.exactness.rows >= resources.limits.most_rows
        self.expected_bytes, self.draft_model = resources.expected_bytes, resources.draft_model
        self._drafting, self._kernels, self._grammars = resources.drafting, resources.kernels, resources.grammars
        self._keeper, self._hidden, self._worth = resources.keeper, resources.hidden, worth
        self.pictures = resources.pictures
        self.start_afresh(0.0)

    def start_afresh(self, load_seconds: float) -> None:
        """Nothing runs, and nothing is remembered but what the draft model is worth."""
        config, self.load_seconds = self.config, load_seconds
        self.pool.forget()
        if self.pictures is not None:
            self.pictures.forget()
        per_key, in_all = config.session_bytes_per_key, config.session_bytes_in_all
        bounds = config.session_bytes, per_key // config.workers, in_all // config.workers
        self.sessions = SessionStore(SessionLimits(*bounds, config.session_ttl))
        self._pricing = Pricing(config.max_nodes, self.costs, self._worth.restore(self.sessions.acceptance_models))
        self._scheduler = Scheduler(self.limits, self.pool, self._pricing)
        self._launched: LaunchedStep | None = None  # before the last step was collected
        waits = self.pool.states is not None or self._drafting.reads_features or config.tensor_parallel_size > 1
        self._ahead = None if waits else RootsAhead(self._scheduler, self.pool, self.store)
        self._unlearnt: list[SequenceStep] = []  # of the last step: prompts that go on, which can wait for the next
        compile = self._grammars.compile
        sources = RowSources(self._fetch, self.pictures)
        self._intake = Intake(self.model.vocab_size, self._drafting, self.sessions, compile, sources)
        self._num_steps = 0

    @property
    def methods(self) -> list[str]:
        """Names of the drafting methods that a request may ask for."""
        return self._drafting.methods

    @property
    def embedding_len(self) -> int:
        """How many numbers the embedding of a prompt has; 0 where the model gives none."""
        return 0 if self._hidden is None else self._hidden.width

    @property
    def missing_methods(self) -> list[str]:
        """Those of them that are still being compiled: their requests run plain until then."""
        return [method for method in self._kernels.missing if method in self.methods]

    def add(self, request: Request, start_drafter: StartDrafter | None = None) -> None:
        """Queue a request. Raises RequestRejected, naming the field, for what can never be served, or not now.

        start_drafter: makes a drafter of the caller's own instead of the method's, for experiments.
        """
        check_request(request, self.config, self.model.vocab_size, self.room, self._hidden is not None)
        check_pictures(request, self.model.tower, self.model.blindness, self.limits.most_rows)
        self._drafting.check(request.speculation.method)
        is_open = request.id in self._scheduler or request.id in self._intake.pending
        check_queue(request.id, is_open, self._scheduler.num_open + len(self._intake.pending), self.limits)
        sequence = self._intake.take_on(request, start_drafter)
        if sequence is not None:
            self._scheduler.add(sequence)

    def abort(self, request_id: str) -> Finished | None:
        """Stop a request and free its blocks at once; None if it is not, or no longer, here."""
        sequence = self._scheduler.retire(request_id)
        if sequence is not None:
            return sequence.end(FinishReason.ABORT)
        request = self._intake.drop(request_id)
        if request is None:
            return None
        stats = RequestStats(prompt_tokens=len(request.prompt))
        return Finished(request_id=request_id, reason=FinishReason.ABORT, stats=stats)

    @property
    def runs_ahead(self) -> bool:
        """Whether the host has time to itself between a step's launch and its wait."""
        return self.model.device.type != "cpu"

    @property
    def has_work(self) -> bool:
        return self._scheduler.num_running + self._num_waiting > 0

    @property
    def _num_waiting(self) -> int:
        return self._scheduler.num_waiting + len(self._intake.pending)

    @property
    def compiling_ids(self) -> list[str]:
        """The requests whose grammar is being compiled."""
        return list(self._intake.pending)

    def request_ids(self) -> list[str]:
        """Every request that has not ended."""
        return [*(sequence.request.id for sequence in self._scheduler.all()), *self._intake.pending]

    def step(
        self, meanwhile: Callable[[], None] = lambda: None, announce: Announce = lambda _ids, _progress: None
    ) -> StepResult:
        """One packed forward over all running sequences. What is raised for one of them ends that one.

        meanwhile: what the caller has to do beside, for which there is time between launch and wait. announce: is told
        which requests the step runs, before it does.
        """
        tally, result, isolation = StepTally(), StepResult(), Isolation()
        self._queue_ready(result)
        under_way = self._take_launched()
        steps = self._scheduler.next_steps() if under_way is None else under_way.steps
        announce([step.sequence.request.id for step in steps], progress_of(steps))
        if not steps:
            meanwhile()
            self._intake.wait(GRAMMAR_PATIENCE)
            return result
        if under_way is None:
            self._price(steps, isolation, tally)
            tally.end_phase("schedule")
            self._draft(steps, isolation)
            tally.end_draft(steps)
        launched = under_way or self._launch(steps, tally)
        self._launched = self._launch_ahead(launched, tally)
        meanwhile()
        isolation.each(self._unlearnt, self._learn_prompt)
        drawing = launched.drawing
        verified = isolation.each(steps, lambda step: step.collect(drawing))
        tally.end_sample(launched.forward.seconds())
        isolation.each([step for step in verified if len(step.chunk)], lambda step: step.keep_top(self._tops))
        self._drafting.keep_features(step.kept_tokens() for step in verified)
        if self._hidden is not None:
            hidden = self._hidden
            isolation.each([step for step in verified if step.sequence.pooled], lambda step: step.pool(hidden))
        isolation.each([step for step in verified if step.tree is not None and step.knows_more], self._learn_prompt)
        committed = isolation.each(verified, lambda step: self._commit(step, launched, tally, result))
        self._unlearnt = [step for step in steps if step.tree is None]
        tally.end_phase("commit")
        isolation.each(committed, lambda step: self._observe(step, result))
        tally.end_phase("observe")
        self._note_costs(steps, tally)
        self._note_sessions(steps)
        if self._keeper is not None:
            self._keeper.copy()
        result.events += isolation.retire_failed(self._scheduler)
        num_prefill_tokens = sum(len(step.chunk) for step in steps)
        result.stats = tally.stats(launched.batch.num_tokens, num_prefill_tokens, launched.reuse, self.costs.curve)
        if result.traces:
            result.tell_traces(result.stats)
        return result

    def on_idle(self) -> None:
        """Keep what was learned, then prompts, or else measure on what steps cost, a moment, while nobody waits."""
        self._keep_worth()
        if self._keeper is not None and self._keeper.has_work:
            self._keeper.copy(is_idle=True)
        else:
            self.costs.refine()

    @property
    def has_prompts_to_keep(self) -> bool:
        """Whether `on_idle` is to be called again soon."""
        return self._keeper is not None and self._keeper.has_work

    def close(self, seconds: float) -> None:
        """Write what is still to be kept, of prompts as far as that takes no longer."""
        self._keep_worth()
        if self._keeper is not None:
            self._keeper.close(seconds)

    def _keep_worth(self) -> None:
        self._worth.keep(self.sessions.acceptance_models, self._pricing.trials)

    def _queue_ready(self, result: StepResult) -> None:
        """Let those wait for their turn whose grammar is compiled, and whose prompt's rows are read, by now."""
        if self._intake.pending:
            ready = self._intake.take_ready(result.events)
            if self._keeper is not None:
                self._keeper.settle()
            for sequence in ready:
                self._scheduler.add(sequence)

    def _fetch(self, request: Request) -> Future[int] | None:
        """Have a prompt's rows read that files have and memory has not, where not all of them are to be run."""
        if self._keeper is None or request.runs_whole_prompt:
            return None
        num_spare = self.pool.num_available - self._scheduler.num_owed
        reading = self._keeper.fetch(namespace_of(request), request.keys[:-1], num_spare)
        return None if reading is None else reading.ended

    def _price(self, steps: list[SequenceStep], isolation: Isolation, tally: StepTally) -> None:
        """Say what each sequence may draft, by how likely its next token is and by what a node costs at this load, and
        how much of its prompt is worth learning from."""
        drafting, started = [step for step in steps if step.tree is not None], tally.seconds
        isolation.each(drafting, self._drafting.probe)
        asked, reading = [step for step in drafting if step.is_probed], [step for step in steps if len(step.chunk)]
        tally.note_probing(tally.seconds - started, len(asked))
        if not reading and all(step.chance is None for step in drafting):
            return
        demands = [step.drafter.demand() for step in drafting]
        now = {step.sequence for step in drafting}
        waiting = [each.request.num_tokens for each in self._scheduler.running if each not in now]
        rate = self._pricing.rate(demands, waiting)
        self._scheduler.grant(drafting, self._pricing.budgets(rate, demands, [step.chance for step in drafting]))
        room = self.limits.max_prompt_logits - sum(step.num_chunk_logits for step in reading)  # told in any case
        for step in reading:
            step.harvest_len, step.harvest_room = self._harvest_len(step, rate), room
            room -= 0 if step.sequence.scores_prompt else step.num_chunk_logits

    def _harvest_len(self, step: SequenceStep, rate: Rate) -> int:
        is_kept = (self.config.prefix_cache or step.drafter.num_top > 0) and step.sequence.pooled is None
        is_worth_it = is_kept and step.drafter.learns_prompt(self._pricing.harvests(rate))
        return self._pricing.harvest_len(rate) if is_worth_it else 0

    def _draft(self, steps: list[SequenceStep], isolation: Isolation) -> None:
        """Let the trees grow. Whose drafting fails also alone is ended."""
        try:
            self._drafting.propose(steps)
        except Exception as error:  # of one of them at least; the others draft again, which changes no token
            if is_device_error(error):
                raise
            isolation.each(steps, self._draft_alone)

    def _draft_alone(self, step: SequenceStep) -> None:
        """The draft model reads the sequence anew: there is no telling how far it came."""
        step.drafter.forget_rows()
        self._drafting.propose([step])

    def _launch(self, steps: list[SequenceStep], tally: StepTally) -> LaunchedStep:
        """Start a step's forward, and its draws."""
        if self.pool.states is not None:
            for step in steps:
                step.mark_state()
        batch = pack([step.segment() for step in steps], self.store)
        note_places(steps, batch)
        forward = self._runner.launch(batch)
        tally.end_phase("forward")
        drawing = self.sampler.launch(forward.logits_RV, [step.ask() for step in steps])
        return LaunchedStep(steps, batch, forward, drawing, self._scheduler.reuse)

    def _launch_ahead(self, launched: LaunchedStep, tally: StepTally) -> LaunchedStep | None:
        """The step after this one, whose roots this one draws on the device; None where more depends on these."""
        roots = launched.drawing.roots
        if self._ahead is None or roots is None:
            return None
        tally.end_phase("sample")
        if (ahead := self._ahead.after(launched.steps)) is None:
            return None
        batch = ahead.batch_after(launched.batch, roots.tokens_B)
        tally.end_phase("schedule")
        forward = self._runner.launch(batch)
        tally.end_phase("forward")
        return LaunchedStep(ahead.steps, batch, forward, roots.follow(forward.logits_RV, ahead.places_B), Reuse())

    def _take_launched(self) -> LaunchedStep | None:
        """The step that was launched before the last one was collected, of those who still run; None if nobody does."""
        launched, self._launched = self._launched, None
        return launched.of_running() if launched is not None else None

    def _learn_prompt(self, step: SequenceStep) -> None:
        step.sequence.learn_prompt(step.start + len(step.chunk), self._tops)

    def _commit(self, step: SequenceStep, launched: LaunchedStep, tally: StepTally, result: StepResult) -> None:
        """Keep the accepted rows, extend the sequence, and say what it was given."""
        sequence, request, drawn = step.sequence, step.sequence.request, step.drawn
        assert drawn is not None, request.id
        if drawn.prompt_logprobs:
            sequence.note_prompt_logprobs(drawn.prompt_logprobs)
        step.keep(self.store)
        if drawn.verdict is None or step.tree is None:
            sequence.note_chunk()
            return
        context = request.num_tokens
        step.num_emitted = sequence.commit(step.tree, drawn.verdict, step.cost)
        if sequence.pooled is not None:
            result.events.append(Pooled(request_id=request.id, vector=sequence.pooled.vector()))
            return
        outcome = outcome_of(step.tree, step.emitted_nodes) if step.tree.num_drafted else None
        sequence.note_outcome(outcome)
        tally.add(step, context, outcome)
        if request.speculation.trace is not None:
            result.traces.append((request.id, trace_step(step, launched.forward.logits_RV)))
        if request.sampling.prompt_logprobs is not None and context == len(request.prompt):
            result.events.append(PromptLogprobs(request_id=request.id, logprobs=sequence.prompt_logprobs))
        tokens = drawn.verdict.tokens[: step.num_emitted].tolist()
        logprobs = drawn.logprobs and drawn.logprobs[: step.num_emitted]
        result.events.append(Tokens(request_id=request.id, token_ids=tokens, logprobs=logprobs))

    def _observe(self, step: SequenceStep, result: StepResult) -> None:
        """Let drafting learn from the step; if it was the sequence's last, say what it came to, learned from or not."""
        try:
            step.observe()
        finally:
            request = step.sequence.request
            if request.finish_reason is not None:
                result.events.append(step.sequence.end(request.finish_reason))
                if self._keeper is not None:
                    step.sequence.publish(self.pool)
                    self._keeper.keep(step.table)
                self._scheduler.retire(request.id)
                self.sessions.note_use([step.drafter.session])

    def _note_costs(self, steps: list[SequenceStep], tally: StepTally) -> None:
        """Let the next steps be planned, and drafted for, by how long this one took."""
        chains = sum(
            self._pricing.seconds_of_chain(len(step.chunk), step.start, step.drafter.reads_ahead)
            for step in steps
            if len(step.chunk)
        )
        trees = [step for step in steps if step.tree is not None]
        tokens, contexts = [len(step.tree.tokens) for step in trees if step.tree], [step.end - 1 for step in trees]
        seconds = tally.seconds
        self._pricing.note_step(seconds, tokens, contexts, chains)
        self._scheduler.note_step(seconds)
        self._note_losses(trees, tokens, contexts, tally.num_probed)
        if chains == 0:
            num_harvested = sum(step.num_harvested for step in trees) if sum(tokens) > len(trees) else 0
            self.costs.note_step(tally.host_step(tokens, num_harvested), [step.cost for step in trees], sum(tokens))

    def _note_losses(self, trees: list[SequenceStep], tokens: list[int], contexts: list[int], num_probed: int) -> None:
        """Let each request pay for what was done to draft for it, whether it drafted or not."""
        reading, curve = 0.0, self.costs.curve
        if num_probed or sum(tokens) > len(trees) or self.draft_model is not None:
            seconds = [curve.probe * step.is_probed + step.cost.usual_seconds for step in trees]
            drafted = list(zip(seconds, [step.num_emitted for step in trees], strict=True))
            probe = curve.probe * len(trees) / curve.step_seconds([1] * len(trees), contexts)
            for step, lost in zip(trees, losses(curve, tokens, contexts, drafted), strict=True):
                assert step.budget is not None, step.sequence.request.id
                step.drafter.note_probe(probe * step.is_probed)
                reading += step.drafter.note_loss(lost, step.budget, step.cost)
                if step.budget.is_trial and step.cost.num_forwards:
                    self._pricing.note_trial(step.budget, step.drafter.is_sampled)
        self._pricing.note_emitted(sum(step.num_emitted for step in trees), reading)

    def _note_sessions(self, steps: list[SequenceStep]) -> None:
        """Have the sessions in use counted and told of, now and then."""
        self._num_steps += 1
        if self._num_steps % SESSIONS_NOTED_EVERY == 0:
            self.sessions.note_use(step.drafter.session for step in steps)

    def stats(self) -> EngineStats:
        """The engine now."""
        draft, keeper = self.draft_model, self._keeper
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._num_waiting,
            slots_used=self.pool.num_held * BLOCK_LEN,
            slots_cached=self.pool.num_idle * BLOCK_LEN,
            slots_total=self.room.num_slots,
            sessions=len(self.sessions),
            session_bytes=self.sessions.num_bytes,
            resident_bytes=resident_bytes(),
            draft_bytes=draft.model.num_bytes + self.room.num_slots * draft.model.bytes_per_slot if draft else 0,
            state_bytes=self.pool.states.num_bytes if self.pool.states else 0,
            state_checkpoints=self.pool.states.num_checkpoints if self.pool.states else 0,
            kept_bytes=keeper.folder.num_bytes if keeper else 0,
            kept_hits=keeper.num_hits if keeper else 0,
            kept_tokens=keeper.num_tokens if keeper else 0,
            kept_seconds=keeper.seconds if keeper else 0.0,
        )
