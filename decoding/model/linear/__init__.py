"""Linear layers whose result for a row does not depend on how many rows the input has.

A row of the input is a token's vector. Knows modules and tensors only.
"""
