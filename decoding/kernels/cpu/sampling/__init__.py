"""Rows of logits: noise, sums and maxima, and what changes a row."""
