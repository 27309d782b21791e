"""How a model's forwards run on a device: one operation at a time, or captured once and replayed from then on.

Knows packed steps and models; nothing of requests, drafting or sampling.
"""
