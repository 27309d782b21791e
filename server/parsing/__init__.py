"""From a reply's text to its parts: what was thought, what is said, which tools are called. Pure, piece by piece.

The invariant of every parser: the parts, joined, are a function of the text, not of how it was cut into pieces.
"""
