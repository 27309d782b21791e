"""Spine trees (GOOSE): a chain copied from context with branches from the adjacency table.

Knows the stores and the kit of `drafting.tree`.
"""
