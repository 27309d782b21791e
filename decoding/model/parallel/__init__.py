"""One model on several devices: its layers are divided, a process for each device holds a share, and rank 0 leads."""
