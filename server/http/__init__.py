"""What every request passes on its way in and out: keys, limits of bodies, errors, event streams, the OpenAPI page.

Knows HTTP; nothing of models or text.
"""
