"""Drawing tokens where the logits are: Triton kernels over blocks of the vocabulary, one copy up and one back a step.

Says what the compiled CPU code says, token for token.
"""
