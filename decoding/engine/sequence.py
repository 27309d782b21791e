"""A request the engine has taken on, with everything that belongs to it, and its part of one step.

Owns nothing of the store or the model: it holds handles to both sides and keeps the request's own counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from decoding.cache.batch import LogitRows, Segment
from decoding.cache.store import KvHandle
from decoding.core.request import Request
from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray
from decoding.core.verdict import Verdict
from decoding.costs.price import Pace
from decoding.drafting.draft_model.seat import DraftCost, Seat
from decoding.drafting.drafter import Drafter
from decoding.drafting.revision.prediction import Prediction
from decoding.sampling.logits_processors import LogitsProcessors
from decoding.sampling.logprobs import token_logprobs
from decoding.stores.session import Session


@dataclass(slots=True, eq=False, kw_only=True)
class Drafting:
    """One method at work for one request. seat: its place in the draft model, if it drafts with it."""

    method: str
    drafter: Drafter
    default_nodes: int | None
    seat: Seat | None = None
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True, eq=False, kw_only=True)
class Running:
    """Request, session, room in the KV store, statistics. Times: seconds on the monotonic clock.

    drafting: the method at work; used: by name, all that have been, so that one can be gone back to. refused: methods
    that can do nothing more for this request.
    processors, prediction: None where the request asks for none. prompt_logprobs: so far, where it asks for them.
    """

    request: Request
    session: Session
    stats: RequestStats
    drafting: Drafting = field(init=False)
    used: dict[str, Drafting] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    processors: LogitsProcessors | None = None
    prediction: Prediction | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    handle: KvHandle | None = None
    last_emitted: int = 0  # tokens given out by the last step
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0

    @property
    def num_committed(self) -> int:
        return self.handle.length if self.handle else 0

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet in the KV store; 1 (the root) once the prompt is through."""
        return self.request.num_tokens - self.num_committed

    def admit(self, handle: KvHandle) -> None:
        self.handle = handle
        self.stats.queue_seconds = time.monotonic() - self.arrived

    def root_processors(self) -> LogitsProcessors | None:
        """What the root's row goes through, up to date; None for nothing."""
        if self.processors is None:
            return None
        self.processors.catch_up()
        return self.processors if self.processors.is_needed else None

    def close(self) -> RequestStats:
        """Give back what drafting holds; the statistics of a request that ended."""
        for drafting in self.used.values():
            if drafting.seat is not None:
                drafting.seat.close()
        if self.prediction is not None:
            self.prediction.follow(self.request.output)
            self.stats.accepted_prediction_tokens = self.prediction.num_found
            self.stats.rejected_prediction_tokens = len(self.request.prediction) - self.prediction.num_found
        return self.stats

    def note_step(self, tree: DraftTree, verdict: Verdict, num_emitted: int, cost: DraftCost) -> None:
        """Count a verified tree, of whose tokens `num_emitted` were given out; cost: the draft model's."""
        now = time.monotonic()
        if self.stats.target_forwards == 0:
            self.first_token = now
            self.stats.time_to_first_token = now - self.arrived
        self.stats.target_forwards += 1
        self.stats.emitted += num_emitted
        self.last_emitted = num_emitted
        self.stats.decode_seconds = now - self.first_token
        self.stats.draft_model_seconds += cost.seconds
        steps_by_method = self.stats.steps_by_method
        steps_by_method[self.drafting.method] = steps_by_method.get(self.drafting.method, 0) + 1
        self.drafting.pace.update(tree.num_drafted, len(verdict.tokens), cost.seconds if cost.is_usual else 0.0)

    def note_earnings(self, seconds: float) -> None:
        """Tell the session what the method earned in the last step. seconds: this request's part of its time."""
        ledger = self.session.ledger(self.request.sampling.temperature > 0)
        ledger.note(self.drafting.method, self.last_emitted, seconds)


@dataclass(frozen=True, slots=True)
class Draft:
    """One request's part of a step: `lead` prompt tokens in a chain from position `start`, then, unless the
    prompt goes on in the next step, the tree, whose root follows the lead. cost: the draft model's; budget: the nodes
    the tree was allowed."""

    running: Running
    start: int
    lead: IntArray
    tree: DraftTree | None
    cost: DraftCost
    budget: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the drafter was not asked for the tree there is."""
        return self.tree is not None and self.budget == 0

    @property
    def is_harvested(self) -> bool:
        """Whether the drafter is to see this part's logits. A plain step is not, or it would not be cheap."""
        return self.running.drafting.drafter.num_top > 0 and (not self.is_plain or len(self.lead) > 0)

    def segment(self) -> Segment:
        """The rows of this part. Logits: all rows if the drafter harvests, else the tree's alone."""
        assert self.running.handle is not None
        num_lead = len(self.lead)
        wants_all = self.is_harvested or self.running.request.sampling.prompt_logprobs is not None
        if self.tree is None:
            return Segment(self.running.handle, self.lead, None, "all" if wants_all else "none")
        logits: LogitRows = "all" if wants_all else len(self.tree)
        if num_lead == 0:
            return Segment(self.running.handle, self.tree.tokens, self.tree.parents, logits)
        tokens = np.concatenate((self.lead, self.tree.tokens))
        lead_parents = np.arange(-1, num_lead - 1, dtype=np.int32)
        parents = np.concatenate((lead_parents, self.tree.parents + np.int32(num_lead)))
        return Segment(self.running.handle, tokens, parents, logits)

    def tree_rows(self, rows_RV: torch.Tensor) -> torch.Tensor:
        """Of this part's logits those that follow the tree's nodes, a row for each."""
        assert self.tree is not None
        return rows_RV[len(rows_RV) - len(self.tree) :]

    def kept_rows(self, verdict: Verdict | None) -> IntArray:
        """int32: the rows of the segment whose keys and values stay: the lead and the accepted path."""
        if len(self.lead) == 0 and verdict is not None:
            return verdict.path
        lead = np.arange(len(self.lead), dtype=np.int32)
        return lead if verdict is None else np.concatenate((lead, verdict.path + np.int32(len(lead))))

    def logprobs(self, verdict: Verdict | None, rows_RV: torch.Tensor) -> list[TokenLogprobs] | None:
        """Of the verdict's tokens, if they are asked for. rows_RV: this part's logits; the prompt's are kept."""
        running, asked = self.running, self.running.request.sampling
        if asked.prompt_logprobs is not None:
            tokens = running.request.prompt[self.start + 1 : self.start + 1 + len(self.lead)]
            running.prompt_logprobs += token_logprobs(rows_RV[: len(tokens)], tokens, asked.prompt_logprobs)
        if asked.logprobs is None or verdict is None or self.tree is None:
            return None
        path_rows_RV = self.tree_rows(rows_RV)[torch.from_numpy(verdict.path)]
        return token_logprobs(path_rows_RV, verdict.tokens, asked.logprobs)

    def observe(self, verdict: Verdict | None, top: TopTokens | None) -> None:
        """Give the drafter the step's outcome; `top` has a row for each row of the segment."""
        drafter, num_lead = self.running.drafting.drafter, len(self.lead)
        if num_lead:
            drafter.observe_prefill(self.start, top and TopTokens(top.ids[:num_lead], top.probabilities[:num_lead]))
        if self.tree is not None and verdict is not None and not self.is_plain:
            drafter.observe(self.tree, verdict, top and TopTokens(top.ids[num_lead:], top.probabilities[num_lead:]))
