"""What drafting remembers: of a request its context, of a session what the target once said.

Flat arrays behind small classes, compiled look-ups, no Python per token. Knows nothing of requests or trees.
"""
