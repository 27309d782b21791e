"""Acceptance lengths at equal draft budgets, for every method and workload: `gander bench replay`.

Knows nothing of seconds: what a node costs is measured elsewhere.
"""
