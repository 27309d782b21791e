"""Ollama's API below /api: its routes, its conversion to chat and completion requests, and its reply format."""
