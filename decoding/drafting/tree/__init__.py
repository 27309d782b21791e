"""The kit that every grower of draft trees shares.

Knows nodes, chances and draws; nothing of where candidates come from.
"""
