"""Owns the split: which texts are for training and which are held out.

Does not know a text's content. Invariant: a text's side depends only on its key, never on a seed.
"""

import hashlib
from collections.abc import Callable
from random import Random

HELD_OUT_PARTS = 40


def is_held_out(key: str) -> bool:
    """Whether the hash of the key puts it on the held-out side (one part in `HELD_OUT_PARTS`)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT_PARTS == 0


def draw_from_side(random: Random, draw: Callable[[Random], str], held_out: bool) -> str:
    """Draws texts until one is on the wanted side."""
    while is_held_out(text := draw(random)) != held_out:
        pass
    return text
