"""Many samples of one problem, as best-of-n and voting need them, in the form of STAND's: `gander bench samples`.

Not the engine; nothing of it imports this.
"""
