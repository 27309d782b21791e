"""Who compiles the kernels, and when: before the first request what every reply needs, the drafters beside it."""
