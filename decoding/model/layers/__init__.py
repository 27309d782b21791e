"""Decoder layers that run a few tokens in one call: kernels, the programs that join them, which layers qualify."""
