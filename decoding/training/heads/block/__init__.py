"""Training of block heads: a new one, its loss, and how far its trees are accepted.

Only this room runs many blocks of one text at once.
"""
