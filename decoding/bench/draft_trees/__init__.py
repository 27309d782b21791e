"""Reproduces DynaTree's tables of draft-model trees: `python -m decoding.bench.draft_trees`.

Not the engine; nothing of it imports this.
"""
