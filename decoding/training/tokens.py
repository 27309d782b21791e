"""Owns the tokenised corpus on disk and how batches are packed from it.

Does not know models. Invariant: a batch is a function of (corpus, cursor, shape), so a resumed run sees the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from decoding.core.files.output import replace_file
from decoding.training.texts.corpus import END_OF_TEXT, SPECIAL_TOKENS, Document, Skill, Source, generate_documents

Shares = Mapping[Source, float]


@dataclass(frozen=True)
class TokenisedCorpus:
    """Concatenated documents: `tokens`, where the loss counts, and each document's start (plus the end of the last)."""

    tokens: np.ndarray
    is_learned: np.ndarray
    starts: np.ndarray

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.starts) - 1


@dataclass(frozen=True)
class Batch:
    """Rows of equal length; `targets` is -100 where no loss counts; `cursor` is the next document."""

    inputs: Tensor
    targets: Tensor
    cursor: int


def encode_document(document: Document, tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Token ids with the end-of-text token, and for each whether its loss counts."""
    token_ids: list[int] = []
    is_learned: list[bool] = []
    for segment in document.segments:
        ids = tokenizer.encode(segment.text, add_special_tokens=False).ids
        token_ids += ids
        is_learned += [segment.is_learned] * len(ids)
    return [*token_ids, SPECIAL_TOKENS.index(END_OF_TEXT)], [*is_learned, True]


def tokenise_mixture(tokenizer: Tokenizer, seed: int, num_tokens: int, shares: Shares) -> TokenisedCorpus:
    """About `num_tokens` of training documents, mixed so that every stretch holds the shares of the sources."""
    streams = {source: _encoded(source, tokenizer, seed) for source in shares}
    counts = dict.fromkeys(shares, 0)
    parts: list[np.ndarray] = []
    flags: list[np.ndarray] = []
    while sum(counts.values()) < num_tokens:
        source = min(shares, key=lambda name: counts[name] / shares[name])
        token_ids, is_learned = next(streams[source])
        counts[source] += len(token_ids)
        parts.append(np.array(token_ids, dtype=np.uint16))
        flags.append(np.array(is_learned, dtype=bool))
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return TokenisedCorpus(np.concatenate(parts), np.concatenate(flags), starts)


def tokenise_held_out(tokenizer: Tokenizer, seed: int, skill: Skill, num_documents: int) -> TokenisedCorpus:
    """Held-out documents of one skill."""
    stream = generate_documents(skill, seed, held_out=True)
    encoded = [encode_document(next(stream), tokenizer) for _ in range(num_documents)]
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in encoded])]).astype(np.int64)
    tokens = np.concatenate([np.array(ids, dtype=np.uint16) for ids, _ in encoded])
    return TokenisedCorpus(tokens, np.concatenate([np.array(flags, dtype=bool) for _, flags in encoded]), starts)


def _encoded(source: Source, tokenizer: Tokenizer, seed: int) -> Iterator[tuple[list[int], list[bool]]]:
    for document in generate_documents(source, seed, held_out=False):
        yield encode_document(document, tokenizer)


def pack_batch(corpus: TokenisedCorpus, cursor: int, num_rows: int, row_len: int) -> Batch:
    """Fills `num_rows` rows. Every row starts with a new document; the row's last document is cut if it does not
    fit."""
    inputs = np.zeros((num_rows, row_len), dtype=np.int64)
    targets = np.full((num_rows, row_len), -100, dtype=np.int64)
    for row in range(num_rows):
        ids, flags, cursor = _fill_row(corpus, cursor, row_len + 1)
        inputs[row] = ids[:-1]
        targets[row] = np.where(flags[1:], ids[1:], -100)
    return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), cursor)


def _fill_row(corpus: TokenisedCorpus, cursor: int, row_len: int) -> tuple[np.ndarray, np.ndarray, int]:
    ids = np.zeros(row_len, dtype=np.int64)
    flags = np.zeros(row_len, dtype=bool)
    filled = 0
    while filled < row_len:
        start, end = corpus.starts[cursor : cursor + 2]
        end = min(end, start + row_len - filled)
        ids[filled : filled + end - start] = corpus.tokens[start:end]
        flags[filled : filled + end - start] = corpus.is_learned[start:end]
        filled += int(end - start)
        cursor = (cursor + 1) % corpus.num_documents
    return ids, flags, cursor


def save_corpus(corpus: TokenisedCorpus, path: Path) -> None:
    """Writes the corpus so that a killed run leaves the old file or the new one."""
    with replace_file(path) as file:
        np.savez(file, tokens=corpus.tokens, is_learned=corpus.is_learned, starts=corpus.starts)


def load_corpus(path: Path) -> TokenisedCorpus:
    """Reads what `save_corpus` wrote."""
    with np.load(path) as arrays:
        return TokenisedCorpus(arrays["tokens"], arrays["is_learned"], arrays["starts"])
