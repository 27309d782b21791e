"""Attention over a packed batch of trees: backends behind one signature.

Knows batches and the cache they are in; nothing of requests or drafting.
"""
