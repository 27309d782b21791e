"""The wire models, one file per endpoint: the bodies that clients may send, and the replies that they get."""
