"""Gosling: the small model that ships with Gander, and the command that makes it from a seed."""
