"""Attention on a GPU: Triton kernels over the block pool, their sizes, and what can be shown of them without a GPU."""
