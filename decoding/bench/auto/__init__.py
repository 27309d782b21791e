"""Compares one tree from all sources with each method alone, in tokens a second: `gander bench auto`.

Not the engine; nothing of it imports this.
"""
