"""Trees that grow from what a draft model says (DynaTree), all requests together.

Only this room knows that a draft model has rounds, slots and a KV cache.
"""
