"""Finds the blocks that hold a prompt's tokens by a chain of digests, each of a block's tokens and all before them.

Owns the two maps between digests and blocks. Knows nothing of who uses a block or of what is in it.
Invariant: a digest names one block and a block has at most one digest.
"""

from __future__ import annotations

from hashlib import blake2b

from decoding.core.tree import IntArray

DIGEST_BYTES = 16


def namespace_digest(*names: str) -> bytes:
    """The digest that a prompt's chain starts from, so that prompts with different names share no block."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name in names:
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.digest()


def block_digest(before: bytes, tokens: IntArray) -> bytes:
    """The digest of a full block. before: the digest of the block before it."""
    return blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


class PrefixIndex:
    """Digest to block and back. digests: by block."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self.digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, digest: bytes) -> int | None:
        """The block with this digest, or None."""
        return self._blocks.get(digest)

    def add(self, digest: bytes, block: int) -> None:
        """Index a block, unless another block with the same tokens is indexed."""
        if digest not in self._blocks and block not in self.digests:
            self._blocks[digest], self.digests[block] = block, digest

    def remove(self, block: int) -> None:
        """Remove a block whose tokens are about to be overwritten."""
        del self._blocks[self.digests.pop(block)]
