"""What a request's grammar makes of whatever tree was drafted: without the forbidden, and with the forced.

Knows no method.
"""
