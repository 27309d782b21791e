"""How the bundled model was made, and how a static tree is tuned.

Not the engine; only benchmarks import this, for prompts that no training saw.
"""
