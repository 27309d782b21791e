"""Matrices of weights of any kind: how their numbers lie, what unpacks them, and what multiplies them.

Knows files' bytes, kernels and modules that hold one matrix, and no model.
"""
