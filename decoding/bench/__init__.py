"""Benchmarks: `python -m decoding.bench`.

Not the engine; nothing of it imports this.
"""
