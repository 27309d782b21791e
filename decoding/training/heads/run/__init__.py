"""The command's run: its time divided into parts, each of which can be killed and gone on with.

Only this room knows files' order and the clock.
"""
