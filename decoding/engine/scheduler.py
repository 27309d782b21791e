"""Which requests run in the next step, and with how many rows each. No tensors.

Owns the waiting queue and the running set. A request is admitted when the KV store has room for the
longest it can become, so nothing that runs is ever preempted. First come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from decoding.cache.store import KvStore
from decoding.config import EngineConfig
from decoding.costs.curve import CostCurve
from decoding.costs.price import NOTHING, TRIAL_INTERVAL, DraftBudget, node_price, token_rate
from decoding.drafting.draft_model.seat import Ask
from decoding.engine.admission import room_needed
from decoding.engine.sequence import Running


@dataclass(frozen=True, slots=True)
class Task:
    """One request's part of a step: `num_lead` prompt tokens to write, then, unless the prompt
    goes on in the next step, the root and a tree within `allowance` under it."""

    running: Running
    num_lead: int
    allowance: DraftBudget | None

    def ask(self) -> Ask | None:
        """What the draft model has to do for it, if anything: a tree, or to follow the prompt."""
        seat, allowance = self.running.drafting.seat, self.allowance
        if seat is None or (allowance is not None and allowance.max_nodes == 0):
            return None
        end = self.running.num_committed + self.num_lead + (allowance is not None)
        return Ask(seat, end, allowance)


class Scheduler:
    """draft_curve: what a forward of the draft model costs, where there is one."""

    def __init__(
        self, config: EngineConfig, store: KvStore, curve: CostCurve, draft_curve: CostCurve | None = None
    ) -> None:
        self._config = config
        self._store = store
        self.set_costs(curve, draft_curve)
        self._waiting: deque[Running] = deque()
        self._running: dict[str, Running] = {}

    def set_costs(self, curve: CostCurve, draft_curve: CostCurve | None) -> None:
        """Let trees be sized by these costs from here on."""
        self._curve = curve
        self._draft_curve = draft_curve

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, running: Running) -> None:
        self._waiting.append(running)

    def retire(self, request_id: str) -> Running | None:
        """Take a request out, whatever its state, and free its slots; None if it is not here."""
        running = self._running.pop(request_id, None)
        if running is not None:
            assert running.handle is not None
            self._store.free(running.handle)
            running.handle = None
            return running
        for running in self._waiting:
            if running.request.id == request_id:
                self._waiting.remove(running)
                return running
        return None

    def all(self) -> Iterator[Running]:
        yield from self._running.values()
        yield from self._waiting

    def next_tasks(self) -> list[Task]:
        """Every decoding request, then prompt chunks in order of arrival while rows are left.

        A chunk is never cut to fit: its borders depend on its request alone. The first one always runs, so
        prompts move on however many requests decode.
        """
        self._admit()
        chunk = self._config.prefill_chunk
        decoding = [running for running in self._running.values() if running.num_pending == 1]
        rows_left = self._config.max_batch_rows - len(decoding)
        leads = {running.request.id: 0 for running in decoding}
        for running in self._running.values():
            rows = min(running.num_pending, chunk)
            if running.num_pending > 1 and (rows <= rows_left or len(leads) == len(decoding)):
                leads[running.request.id] = rows
                rows_left -= rows
        tasks = []
        drafting = []
        for request_id, rows in leads.items():
            running = self._running[request_id]
            if running.num_pending > max(rows, 1):
                tasks.append(Task(running, rows, None))
            else:
                drafting.append(running)
        allowances = self._allowances(drafting, max(rows_left, 0))
        for running, allowance in zip(drafting, allowances, strict=True):
            tasks.append(Task(running, running.num_pending - 1, allowance))
        return tasks

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._config.max_running:
            handle = self._store.allocate(room_needed(self._waiting[0].request, self._config))
            if handle is None:
                return
            running = self._waiting.popleft()
            running.admit(handle)
            self._running[running.request.id] = running

    def _allowances(self, drafting: list[Running], rows_left: int) -> list[DraftBudget]:
        if not drafting:
            return []
        contexts = [running.request.num_tokens for running in drafting]
        rate = token_rate(self._curve, [running.drafting.pace for running in drafting], contexts)
        num_seats = sum(running.drafting.seat is not None for running in drafting)
        allowances = [self._allowance(running, rate, num_seats) for running in drafting]
        wanted = sum(allowance.max_nodes for allowance in allowances)
        if wanted > rows_left:  # trees shrink alike before anybody waits
            return [replace(each, max_nodes=each.max_nodes * rows_left // wanted) for each in allowances]
        return allowances

    def _allowance(self, running: Running, rate: float, num_seats: int) -> DraftBudget:
        """The nodes a request asked for, or its method's usual number, or what is worth its price.

        Where drafting has not paid for itself the step is a plain one, but for a trial now and then. The price of a
        draft forward is shared by the `num_seats` requests that draft with the draft model.
        """
        request, limit = running.request, self._config.max_nodes
        if request.max_total - request.num_tokens <= 1:  # one token to go: nothing to draft for
            return NOTHING
        max_nodes = request.speculation.max_nodes
        if max_nodes is None:
            max_nodes = running.drafting.default_nodes
        if max_nodes is not None:
            return DraftBudget(min(max_nodes, limit))
        price = node_price(self._curve, rate, request.num_tokens)
        round_price = 0.0
        if running.drafting.seat is not None and self._draft_curve is not None:
            price += node_price(self._draft_curve, rate, request.num_tokens)
            round_price = rate * self._draft_curve.base / num_seats
        is_trial = running.drafting.pace.plain_steps % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
        pays = running.drafting.pace.pays(price, rate * (self._curve.draft + running.drafting.pace.draft_seconds))
        return DraftBudget(limit, price, round_price) if pays or is_trial else NOTHING
