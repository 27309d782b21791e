"""Where the rows of a step that stay are: which rows of it, and the slots they will be found in.

Pure. Invariant: rows of a sequence that ended without numbers to draw from are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import slots_of
from decoding.engine.sequence import SequencePart, VerifiedPart

Places = NDArray[np.int64]
_NOWHERE: Places = np.empty(0, np.int64)


def kept_places(
    parts: Sequence[SequencePart], verified: Sequence[VerifiedPart], batch: StepBatch
) -> tuple[Places, Places]:
    """int64 [k] each: rows of `batch`, of which `parts` are the segments, and slots. Before anything is committed."""
    verdicts = {each.part.sequence: each.verdict for each in verified}
    rows, slots = [], []
    for part, first in zip(parts, batch.offsets[:-1].tolist(), strict=True):
        sequence = part.sequence
        if sequence not in verdicts or sequence.rows is None:
            continue
        kept = part.kept_rows(verdicts[sequence])
        places = np.arange(part.start, part.start + len(kept))
        rows.append(kept + np.int64(first))
        slots.append(slots_of(sequence.rows.table.blocks, places))
    if len(rows) == 1:
        return rows[0], slots[0]
    return np.concatenate([_NOWHERE, *rows]), np.concatenate([_NOWHERE, *slots])
