"""Compiled functions that multiply rows of bytes with weights of 4 to 8 bits in groups."""
