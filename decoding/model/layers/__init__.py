"""Decoder layers whose few rows run as one call: kernels, the program that joins them, how such layers are found."""
