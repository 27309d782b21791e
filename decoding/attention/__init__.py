"""Attention of packed rows over stored keys and values: one signature, several backends."""
