"""What every request passes on its way in and out: keys, limits of bodies, its session, errors, event streams.

Knows HTTP; nothing of models or text.
"""
