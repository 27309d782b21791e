"""The model: loading, checking and running one packed forward per step.

Knows packed rows and attention backends; nothing of requests, trees or sampling.
"""
