"""One file per group of paths; each knows HTTP and asks the service for the rest."""
