"""Heads and draft models side by side, as GTO's Table 1 has them: `gander bench heads`.

Not the engine; nothing of it imports this.
"""
