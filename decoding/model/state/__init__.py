"""Layers that carry a state: which they are, how a step of trees runs through them, and what a commit keeps.

Knows sequences' states and a step's trees; nothing of attention, weights or requests.
"""
