"""The step: who runs in it, with what tree, and what each request is given.

Knows every room below; nothing but the worker, benchmarks and training knows it.
"""
