"""POST /v1/embeddings: its route, and how inputs become vectors."""
