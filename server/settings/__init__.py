"""The settings in groups, in the order in which `gander serve --help` shows them. `ServerSettings` is all of them."""
