"""STAND: trees from a session's n-grams, drawn with the request's own noise.

Knows the n-gram store and the kit of `drafting.tree`.
"""
