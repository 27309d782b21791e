"""Many samples of one problem, as STAND's tables have them.

Not the engine; nothing of it imports this.
"""
