"""Which blocks hold the tokens of a prompt: a chain of digests, each over a block's tokens and all before them.

Owns the two maps between digests and blocks. Knows nothing of who uses a block or of what is in it.
Invariant: a digest names one block and a block has at most one digest.
"""

from __future__ import annotations

from hashlib import blake2b

from decoding.core.tree import IntArray

DIGEST_BYTES = 16


def namespace_digest(*names: str) -> bytes:
    """Where the chain of a prompt begins: prompts of different names share no block."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name in names:
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.digest()


def block_digest(before: bytes, tokens: IntArray) -> bytes:
    """Of a full block, after the digest of the block before it."""
    return blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


class PrefixIndex:
    """Digest to block and back."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    def find(self, digest: bytes) -> int | None:
        """The block of these tokens, if there is one."""
        return self._blocks.get(digest)

    def add(self, digest: bytes, block: int) -> None:
        """Let a block be found. One that holds the same tokens stays the one that is found."""
        if digest not in self._blocks and block not in self._digests:
            self._blocks[digest], self._digests[block] = block, digest

    def remove(self, block: int) -> None:
        """The block's tokens are about to be overwritten."""
        del self._blocks[self._digests.pop(block)]
