"""One process after another for each worker: how they are started, watched, ended and replaced."""
