"""Models of published sizes with random weights, beside transformers: what their layers cost, whatever they say."""
