"""Speeds on a GPU: measured if there is one, calculated otherwise."""
