"""Attention on a GPU: Triton kernels over the block pool, their tile sizes and their work list."""
