"""Gander's HTTP side: text, users and time-outs. Knows no tensors; imports only `decoding`'s public names."""
