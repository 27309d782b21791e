"""Kernels for a GPU, in Triton, and whether they can run here."""
