"""Rows times matrices: in panels of float32, bfloat16 or bytes, and in groups of small integers."""
