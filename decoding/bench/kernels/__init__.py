"""The kernels of attention and of exact products alone: their compilation for GPUs that this machine lacks, and the
quickest tiles on one that it has."""
