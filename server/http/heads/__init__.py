"""What must hold of a request's head before anybody looks at what it asks for: its form, and whom it is for.

Knows nothing of keys and bodies.
"""
