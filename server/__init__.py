"""Gander's HTTP side: text, users and time-outs. It knows nothing of tensors, and imports only `decoding`'s public names."""
