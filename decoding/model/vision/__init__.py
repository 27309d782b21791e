"""Models that see: which can be served, the tower that makes rows of pictures, and the rows that are kept.

Knows nothing of requests, nor of how rows enter a prompt.
"""
