"""Kernels for the processor: lanes, programs on all threads, and a folder or file for each thing that is computed."""
