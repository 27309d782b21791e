"""The texts that the bundled model learned from, and those held out.

Pure generators; knows nothing of models.
"""
