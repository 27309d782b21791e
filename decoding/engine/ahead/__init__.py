"""Steps that are launched before it is known what the step before them has drawn."""
