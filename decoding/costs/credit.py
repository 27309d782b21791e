"""What drafting may cost a reply more than it brings, in steps of plain decoding.

Pure arithmetic. Invariant: by reckoned costs a reply of `SHORT_REPLY` tokens or more takes at most 1.05 times as long
as without drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.costs.price import CostCurve, num_trees

LARGEST_LOSS = 0.04  # of the time of plain decoding, that drafting may cost a reply
PROBE_SHARE = 0.01  # of it, that asking the stores may, of a reply that drafting has gained nothing
TRIAL_SHARE = 0.03  # of it, that trials of a draft model may; and of the server's time, what they read for that
SHORT_REPLY = 100  # tokens; a shorter reply may lose what one of so many may


def credit(num_emitted: int, lost: float, share: float = LARGEST_LOSS) -> float:
    """What drafting may yet cost a reply of so many tokens, which has lost as much to plain decoding, in its tokens."""
    return share * max(SHORT_REPLY, num_emitted) - lost


def losses(
    curve: CostCurve,
    tokens: Sequence[int],
    contexts: Sequence[int],
    drafted: Sequence[tuple[float, int]],
) -> list[float]:
    """What drafting cost each request of a step more than it brought, in tokens of plain decoding: negative where it
    gained. tokens: that each ran; drafted: seconds of the draft model, and of asking the stores, for each, and the
    tokens that each was given."""
    plain, num_drafted = curve.step_seconds([1] * len(tokens), contexts), sum(tokens) - len(tokens)
    rate, more = len(tokens) / plain, curve.step_seconds(tokens, contexts) - plain - curve.tree * num_trees(tokens)
    shares = [(count - 1) / max(1, num_drafted) * more + curve.tree * (count > 1) for count in tokens]
    return [rate * (share + seconds) + 1 - count for share, (seconds, count) in zip(shares, drafted, strict=True)]
