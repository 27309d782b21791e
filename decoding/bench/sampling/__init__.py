"""Whether the sampler on the device says what the compiled one says, over random rows and settings.

`python -m decoding.bench.sampling`: on the GPU if there is one, else with TRITON_INTERPRET=1 on the CPU.
"""
