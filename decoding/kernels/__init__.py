"""All compiled code, and what only it needs. A kernel knows numbers, strides and constants: no module, no
configuration, no model. Nothing here imports from a room outside."""
