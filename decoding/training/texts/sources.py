"""Owns the pieces of the running interpreter's own standard library that the corpus reads.

Does not know the mixture. Invariant: files come in path order, so one Python version gives one list of pieces.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "site-packages",
        "turtledemo",
        "encodings",
        "pydoc_data",
        "__pycache__",
        "ensurepip",
    }
)
PIECE_CHARACTERS = 1500


def library_pieces() -> Iterator[str]:
    """Pieces of about `PIECE_CHARACTERS` characters, cut before top-level definitions where there are any."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            text = path.read_text(encoding="utf-8", errors="ignore")
            if text.isascii():
                yield from _cut(text)


def _cut(text: str) -> Iterator[str]:
    piece: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        starts_block = line.startswith(("def ", "class ", "@", "    def ", "async def "))
        if (length > PIECE_CHARACTERS and starts_block) or length > 3 * PIECE_CHARACTERS:
            yield "".join(piece)
            piece, length = [], 0
        piece.append(line)
        length += len(line)
    if length > 200:
        yield "".join(piece)
