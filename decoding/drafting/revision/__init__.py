"""What a request itself knows of its reply, its prediction and its grammar, put into whatever tree was drafted.

Knows no method.
"""
