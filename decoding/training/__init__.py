"""Makes the bundled model, trains draft heads, and tunes static trees.

Not the engine; only benchmarks import this, for prompts that no training saw.
"""
