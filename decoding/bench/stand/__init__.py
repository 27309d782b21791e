"""Measures many samples of one problem, in the form of STAND's tables.

Not the engine; nothing of it imports this.
"""
