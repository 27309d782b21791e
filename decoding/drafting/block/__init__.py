"""A block head: one forward names a token for each of the next places (DFlash, Chen et al., 2026).

Only this room knows its tensors and how its rows attend. Features are kept as for every head.
"""
