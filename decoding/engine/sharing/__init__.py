"""What keys and calls share: places to run in, room in the cache, and the rows of a step."""
