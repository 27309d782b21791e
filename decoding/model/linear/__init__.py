"""Linear layers that treat every row alike, however many there are.

Knows modules and tensors only.
"""
