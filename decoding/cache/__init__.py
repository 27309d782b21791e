"""Where keys and values live, and how a step's rows are laid into it.

Knows layers and rows; nothing of what the tokens mean.
"""
