"""From an endpoint's options to its answer: prepare a call, plan its requests, run them, and turn tokens into deltas.

Knows requests, tokens and text, and the parts of replies that endpoints share; their serializers write the rest.
"""
