"""Models in other people's formats: GGUF files and quantised checkpoints, read into one kind of packed weight."""
