"""Draws tokens on the device: Triton kernels over blocks of the vocabulary, one copy to it and one back per step.

Gives the same tokens as the compiled CPU code.
"""
