"""Turns text and conversations into tokens: tokenizer, chat templates, encoding.

Knows the model's files; nothing of replies.
"""
