"""Where a matrix's numbers are: in a file, a tensor, or packed as a processor's kernels read them."""
