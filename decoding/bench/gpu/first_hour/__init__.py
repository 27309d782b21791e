"""What to measure in the first hour on a GPU, a part a call: `python -m decoding.bench.gpu.first_hour PART`."""
