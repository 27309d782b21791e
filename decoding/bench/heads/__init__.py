"""Compares draft heads and draft models in the form of GTO's Table 1: `gander bench heads`.

Not the engine; nothing of it imports this.
"""
