"""Pictures that clients send: read from their files within limits, processed for the model, placed in its prompt."""
