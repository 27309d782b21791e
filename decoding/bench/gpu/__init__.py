"""What a GPU does: measured where there is one, calculated where there is none."""
