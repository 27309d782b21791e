"""The model: loading, checking and running one packed forward per step.

Knows packed tokens and attention backends; nothing of requests, drafting or sampling.
"""
