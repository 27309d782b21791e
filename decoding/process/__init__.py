"""Where a process runs: what its machine allows it, and the process that it ends with."""
