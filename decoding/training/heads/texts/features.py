"""Owns what the target knew at the tokens of packs: its features and last hidden states, 16 bits a number.

Files of packs are kept as long as the folder has room, and others are read anew when a step needs them, to the same
numbers. Invariant: a file is complete or missing, and all files together take at most `most_bytes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from decoding.core.files.output import replace_file
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.packs import Pack, packed_in_order

NUMBERS = torch.bfloat16  # of a hidden state, whose largest numbers are beyond float16
READ_TOKENS = 4096  # of a forward, whose logits are 32 bits of the whole vocabulary
# Shape suffixes: T tokens of a pack, F the features of a token, E the target's width.


@dataclass(frozen=True, slots=True)
class Known:
    """features_TF, hidden_TE: bfloat16, the second after the target's last norm. likeliest_T: int64, the token that the
    target thinks likeliest after each."""

    features_TF: Tensor
    hidden_TE: Tensor
    likeliest_T: Tensor


class Features:
    """folder: of files of this target and these layers, or None to keep nothing. most_bytes: of all files."""

    def __init__(self, target: OnlineTarget, folder: Path | None, most_bytes: int) -> None:
        self.target, self._most_bytes = target, most_bytes
        self._folder = None if folder is None else folder / _name(target)
        kept = [] if self._folder is None else self._folder.glob("*.safetensors")
        self._num_bytes = sum(path.stat().st_size for path in kept)

    def of(self, pack: Pack) -> Known:
        """On the target's device, from the pack's file, or by a packed forward."""
        path = None if self._folder is None else self._folder / f"{pack.digest}.safetensors"
        if path is not None and path.is_file():
            with safe_open(path, framework="pt", device=str(self.target.model.device)) as file:
                found = (file.get_tensor(name) for name in ("features", "hidden", "likeliest"))
                return Known(*found)
        known = self._read(pack)
        if path is not None and not self.is_full:
            self._keep(known, path)
        return known

    def has(self, pack: Pack) -> bool:
        """Whether a file holds the pack."""
        return self._folder is not None and (self._folder / f"{pack.digest}.safetensors").is_file()

    @property
    def is_full(self) -> bool:
        """Whether a pack found no room."""
        return self._folder is None or self._num_bytes >= self._most_bytes

    def _read(self, pack: Pack) -> Known:
        parts = []
        for some in packed_in_order(pack, READ_TOKENS):
            with self.target.reading(some.texts) as readings:
                parts += [(each.features_TF, each.hidden_TE, each.logits_TV.argmax(-1)) for each in readings]
        features_TF, hidden_TE, likeliest_T = (torch.cat(each) for each in zip(*parts, strict=True))
        return Known(features_TF.to(NUMBERS), hidden_TE.to(NUMBERS), likeliest_T)

    def _keep(self, known: Known, path: Path) -> None:
        named = {"features": known.features_TF, "hidden": known.hidden_TE, "likeliest": known.likeliest_T}
        content = save({name: each.cpu().contiguous() for name, each in named.items()})
        if self._num_bytes + len(content) > self._most_bytes:
            self._num_bytes = max(self._num_bytes, self._most_bytes)
            return
        with replace_file(path) as file:
            file.write(content)
        self._num_bytes += len(content)


def fill(features: Features, packs: Sequence[Pack]) -> Iterator[int]:
    """Read the packs that have no file, one by one while there is room; the tokens of each."""
    for pack in packs:
        if features.is_full:
            return
        if not features.has(pack):
            features.of(pack)
            yield pack.num_tokens


def _name(target: OnlineTarget) -> str:
    told = repr((target.model.identity, target.layers))
    return f"features-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
