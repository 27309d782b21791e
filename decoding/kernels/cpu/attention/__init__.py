"""Exact attention over the blocks of the cache: tables, products, scratch, and the kernel."""
