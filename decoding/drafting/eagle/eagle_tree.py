"""EAGLE-2's tree, which EAGLE-3 and GTO keep: a beam grows depth by depth, then the likeliest of all its nodes stay.

Owns the paper's numbers. Knows no price: its forwards are always the same.
"""

from __future__ import annotations

from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.draft_model.growth import Rules, even_rules

BEAM = 10  # nodes that grow on at each depth, and children of each
NUM_NODES = 59  # drafted ones; with the root the paper's 60
MOST_DEPTH = 8  # the paper's depth of 7 counts the forwards after the first


def eagle_rules(speculation: SpeculationParams) -> Rules:
    """EAGLE-2, section 4 (Li et al., 2024).

    A child's chance is the head's probability; of a request that samples, its share given the noise its own draw will
    meet, which is EAGLE's rule carried over to drafts that are to equal what the target draws.
    """
    depth = MOST_DEPTH if speculation.max_depth is None else speculation.max_depth
    return even_rules(BEAM, depth, beam=BEAM)
