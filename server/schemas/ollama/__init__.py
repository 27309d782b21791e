"""The wire models of Ollama's API, by its public documentation."""
