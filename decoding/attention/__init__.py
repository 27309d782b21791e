"""Attention over a packed batch of trees: backends behind one signature.

Knows batches and the KV cache; nothing of requests or drafting.
"""
