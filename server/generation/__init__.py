"""From an endpoint's options to its answer: a call is prepared, planned, run, and its choices told piece by piece.

Knows requests, tokens and text, and the parts of replies that endpoints share; the rest is their serializers'.
"""
