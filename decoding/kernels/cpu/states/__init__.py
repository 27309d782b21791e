"""Layers that carry a state: the order of a walk, the walk, and convolutions."""
