"""Grammars: first tried in a separate process, then compiled and cached, then followed by replies.

Knows nothing of logits, trees or steps.
"""
