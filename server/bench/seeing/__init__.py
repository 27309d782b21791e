"""What a picture costs until the first token, by its size: of a model of yours, or of one with a real model's shape."""
