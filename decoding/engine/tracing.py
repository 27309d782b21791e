"""The trace of a step: where each token came from and, if asked, the whole draft tree with the target's view of it.

Nothing in a step reads it.
"""

from __future__ import annotations

import torch

from decoding.core.speculation_params import TRACE_TREES
from decoding.core.step_trace import NodeTrace, StepTrace
from decoding.core.tree import DraftTree, IntArray, Source
from decoding.engine.sequence_step import SequenceStep
from decoding.engine.tally import SOURCE_NAMES
from decoding.sampling.logprobs import token_logprobs


def trace_step(step: SequenceStep, logits_RV: torch.Tensor) -> StepTrace:
    """A step just committed. logits_RV: the raw logits of the whole step."""
    tree, sequence = step.tree, step.sequence
    assert tree is not None, sequence.request.id
    wants_tree = sequence.request.speculation.trace == TRACE_TREES
    emitted = step.emitted_nodes
    sources = [*tree.sources[emitted].tolist(), int(Source.BONUS)]
    return StepTrace(
        number=sequence.stats.target_forwards,
        method=step.drafter.active.choice.method,
        drafted=tree.num_drafted,
        accepted=len(emitted),
        sources=[SOURCE_NAMES[source] for source in sources[: step.num_emitted]],
        tree=_nodes(tree, emitted, step.tree_rows(logits_RV).cpu()) if wants_tree else None,
    )


def _nodes(tree: DraftTree, emitted: IntArray, rows_NV: torch.Tensor) -> list[NodeTrace]:
    drafted = token_logprobs(rows_NV[torch.from_numpy(tree.parents[1:])], tree.tokens[1:], 0)
    accepted = {0, *emitted.tolist()}
    return [
        NodeTrace(token_id, parent, SOURCE_NAMES[source], _names(tree, node), logprob, node in accepted)
        for node, (token_id, parent, source, logprob) in enumerate(
            zip(
                tree.tokens.tolist(),
                tree.parents.tolist(),
                tree.sources.tolist(),
                [None, *(entry.logprob for entry in drafted)],
                strict=True,
            )
        )
    ]


def _names(tree: DraftTree, node: int) -> list[str]:
    return [SOURCE_NAMES[source] for source in tree.named_by(node)]
