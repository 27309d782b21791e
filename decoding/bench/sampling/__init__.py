"""Checks that the device sampler gives the same answers as the CPU sampler, over random rows and settings.

`python -m decoding.bench.sampling`: on the GPU if there is one, else with TRITON_INTERPRET=1 on the CPU.
"""
