"""Rows of pictures: made by the tower beside steps, in a thread of their own, and kept within a number of bytes.

Owns the thread and the rows that are kept. Knows nothing of prompts.
Invariant: the tower runs one picture at a time, and no picture whose rows are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from decoding.core.picture import Picture
from decoding.model.vision.tower import Tower


class SeenPictures:
    """tower: what makes them. most_bytes: of the rows that are kept for later requests; those used last stay.
    num_seen: pictures that the tower ran."""

    def __init__(self, tower: Tower, most_bytes: int) -> None:
        self.tower, self._most_bytes = tower, most_bytes
        self._rows: OrderedDict[bytes, torch.Tensor] = OrderedDict()  # the thread's
        self._thread = ThreadPoolExecutor(1, "tower")
        self.num_seen, self.num_bytes = 0, 0

    def see(self, pictures: Sequence[Picture]) -> Future[list[torch.Tensor]]:
        """Have the rows of each picture made, or found. Returns at once."""
        return self._thread.submit(lambda: [self._see(picture) for picture in pictures])

    def forget(self) -> None:
        """Keep no rows, and have seen nothing. While nothing is being seen."""
        self._rows.clear()
        self.num_seen = self.num_bytes = 0

    def _see(self, picture: Picture) -> torch.Tensor:
        rows_NE = self._rows.pop(picture.digest, None)
        if rows_NE is None or len(rows_NE) != picture.num_rows:
            rows_NE = self.tower.see(picture)
            self.num_seen += 1
        self._rows[picture.digest] = rows_NE
        self.num_bytes = sum(each.nbytes for each in self._rows.values())
        while self.num_bytes > self._most_bytes and len(self._rows) > 1:
            self.num_bytes -= self._rows.popitem(last=False)[1].nbytes
        return rows_NE
