"""What modelling code computes beside its layers, so that a token has the same bits in every batch.

Knows modules and functions of torch; nothing of packed layers or steps.
"""
