"""What each sequence runs in a step: the next of its tokens, and the tree that is drafted for it.

Owns nothing. Invariant: whoever was planned is in the step, since others may have found rows that it was to run; where
drafting failed it runs plain, to fail at the step's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoding.core.tree import root_only
from decoding.costs.step_fit import StepKind
from decoding.drafting.draft_model.state import DraftCost
from decoding.drafting.drafting import Drafting, DraftRequest, Proposals
from decoding.engine.isolation import Isolation
from decoding.engine.scheduler import Task
from decoding.engine.sequence import SequencePart


def drafted_parts(
    tasks: Sequence[Task], drafting: Drafting, isolation: Isolation, harvest_rows: Callable[[Task], int]
) -> tuple[list[SequencePart], Proposals]:
    """A part for each task, and the proposals that they are made of. harvest_rows: of a prompt that are worth being
    learnt from."""
    try:
        proposals = drafting.propose_batch([_request(task) for task in tasks])
    except Exception:  # of one of them at least; the others draft again, which changes no token
        proposals = _joined([_alone(task, drafting, isolation) for task in tasks])
    parts = []
    for task, tree, cost in zip(tasks, proposals.trees, proposals.costs, strict=True):
        start = task.sequence.num_committed
        chunk = task.sequence.request.tokens[start : start + task.chunk_len]
        budget = task.budget.max_nodes if task.budget else 0
        has_looked = task.sequence.drafter.has_looked
        parts.append(SequencePart(task.sequence, start, chunk, tree, cost, budget, harvest_rows(task), has_looked))
    return parts, proposals


def step_kind(parts: Sequence[SequencePart]) -> StepKind:
    """What these parts, none of which brings a prompt, have beside their forward."""
    return StepKind(
        requests=len(parts),
        looks=sum(part.has_looked for part in parts),
        trees=sum(part.budget > 0 for part in parts),
        nodes=sum(part.num_tokens - 1 for part in parts),
        harvested=sum(part.num_tokens for part in parts if part.num_top > 0),
        rounds=sum(part.cost.num_forwards for part in parts),
    )


def _request(task: Task) -> DraftRequest:
    return DraftRequest(task.sequence.drafter, task.table, task.end, task.budget)


def _alone(task: Task, drafting: Drafting, isolation: Isolation) -> Proposals:
    """One sequence's. The draft model reads it anew: there is no telling how far it came."""
    task.sequence.drafter.forget_rows()
    for proposed in isolation.each([task], lambda task: drafting.propose_batch([_request(task)])):
        return proposed
    tree = None if task.budget is None else root_only(int(task.sequence.request.tokens[-1]))
    return Proposals([tree], [DraftCost()], [])


def _joined(proposals: Sequence[Proposals]) -> Proposals:
    return Proposals(
        [tree for each in proposals for tree in each.trees],
        [cost for each in proposals for cost in each.costs],
        [reason for each in proposals for reason in each.refusals],
    )
