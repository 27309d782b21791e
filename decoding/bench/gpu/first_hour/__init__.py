"""What to measure first on a GPU, in minutes and by one command: `python -m decoding.bench.gpu.first_hour`."""
