"""Mixtures of experts on the CPU: what a model's experts compute, routing, and the calls that run the chosen ones.

Experts stay packed by one layer each. Knows no whole layers. A row is a token's vector.
"""
