"""Draft-model trees as DynaTree's tables have them: `python -m decoding.bench.draft_trees`.

Not the engine; nothing of it imports this.
"""
