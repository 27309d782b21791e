"""Runs a model's forwards on a device: one operation at a time, or captured once and then replayed.

Knows packed steps and models; nothing of requests, drafting or sampling.
"""
