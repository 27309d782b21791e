"""Measures acceptance lengths at equal draft budgets, for every method and workload: `gander bench replay`.

Does not measure seconds: the cost of a node is measured elsewhere.
"""
