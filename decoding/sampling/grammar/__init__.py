"""Grammars: tried in a process of their own, compiled, kept, and followed by replies.

Knows nothing of logits, trees or steps.
"""
