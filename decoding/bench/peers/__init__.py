"""Compares our engine with other engines on the same weights and threads: `gander bench peers`.

Not the engine; nothing of it imports this.
"""
