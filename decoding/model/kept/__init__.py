"""What earlier starts found, for later ones."""
