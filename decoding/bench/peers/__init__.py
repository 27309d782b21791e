"""Our engine beside other engines for the same weights on the same threads: `gander bench peers`.

Not the engine; nothing of it imports this.
"""
