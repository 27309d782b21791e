"""What the host takes for a step, with a device that answers at once."""
