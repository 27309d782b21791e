"""Decoder layers on a GPU in few launches: what lies between their matrix products, in Triton."""
