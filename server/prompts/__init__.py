"""From text and conversations to tokens: tokenizer, chat templates, encoding.

Knows the model's files; nothing of replies.
"""
