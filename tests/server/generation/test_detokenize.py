"""Incremental text and stop strings: pure, so tested with thousands of random chunkings."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel

from server.generation.detokenize import IncrementalText, StopStrings
from server.parsing.string_search import SearchTree
from tests.server.servers import byte_tokenizer

TEXTS = [
    "def f(x):\n    return x + 1  # naïve\n" * 3,
    "Grüße aus Köln — “schön”, 你好世界, 😀👩‍👩‍👧 done. " * 3,
    "  leading and   many   spaces \t\n\n end ",
    "日本語のテキスト" * 8,
]


def trained_byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=ByteLevel.alphabet(), special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS[:2], trainer)
    return tokenizer


def sentencepiece_like() -> Any:
    """Llama 2's kind: words begin with ▁, unknown characters are byte tokens, the first space is stripped."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", *byte_tokens], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator([TEXTS[0], TEXTS[2]], trainer)
    vocabulary = tokenizer.get_vocab()
    rebuilt = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[tuple(merge) for merge in read_merges(tokenizer)],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    rebuilt.normalizer, rebuilt.decoder = tokenizer.normalizer, tokenizer.decoder
    return rebuilt


def read_merges(tokenizer: Any) -> list[list[str]]:
    import json

    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return merges


TOKENIZERS = {"byte": byte_tokenizer, "byte-level": trained_byte_level, "sentencepiece": sentencepiece_like}


def pieces(decode: Any, token_ids: list[int], sizes: Sequence[int], context: list[int]) -> list[str]:
    text, start, result = IncrementalText(decode, context), 0, []
    for size in sizes:
        result.append(text.push(token_ids[start : start + size]))
        start += size
    assert start >= len(token_ids)
    return [*result, text.flush()]


def random_sizes(rng: random.Random, total: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(rng.choice([1, 1, 2, 3, 7, 40]))
    return sizes


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_any_chunking_gives_what_decoding_everything_gives(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer.encode(text).ids
    rng = random.Random(name + text)
    for _ in range(60):
        split = rng.randrange(len(token_ids))
        context, reply = token_ids[:split], token_ids[split:]
        prefix = tokenizer.decode(context)
        if prefix.endswith("\ufffd"):
            continue
        sizes = [1] * len(reply) if name == "sentencepiece" else random_sizes(rng, len(reply))
        parts = pieces(tokenizer.decode, reply, sizes, context)
        assert prefix + "".join(parts) == tokenizer.decode(token_ids)
        assert "\ufffd" not in "".join(parts)


@pytest.mark.parametrize("name", ["byte", "byte-level"])
def test_any_chunking_of_broken_bytes_gives_the_same_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    rng = random.Random(5)
    for _ in range(300):
        token_ids = [rng.randrange(256) for _ in range(rng.randrange(1, 120))]
        whole = tokenizer.decode(token_ids)
        assert "".join(pieces(tokenizer.decode, token_ids, random_sizes(rng, len(token_ids)), [])) == whole


def test_an_endless_run_of_broken_bytes_is_shown_and_stays_cheap() -> None:
    tokenizer = byte_tokenizer()
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        text: str = tokenizer.decode(token_ids)
        return text

    token_ids = [0x80] * 3000 + list("né".encode())
    parts = pieces(decode, token_ids, [1] * len(token_ids), [])
    assert "".join(parts) == tokenizer.decode(token_ids)
    assert longest <= 300
    assert any(parts[:1000])


def test_a_prompt_that_ends_inside_a_character_is_no_context() -> None:
    assert pieces(byte_tokenizer().decode, list(b"\xa9x"), [1, 1], [0xC3]) == ["", "\ufffdx", ""]


def scan(text: str, sizes: Sequence[int], stops: list[str]) -> tuple[str, bool]:
    scanner, start, shown = StopStrings(SearchTree(stops)), 0, ""
    for size in sizes:
        piece, is_found = scanner.push(text[start : start + size])
        shown, start = shown + piece, start + size
        assert text.startswith(shown)
        if is_found:
            return shown, True
    return shown + scanner.flush(), False


def test_stop_strings_cut_before_the_first_match_however_the_text_is_chunked() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        text = "".join(rng.choice("ab\n") for _ in range(rng.randrange(1, 30)))
        stops = ["".join(rng.choice("ab\n") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(3))]
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        shown, is_found = scan(text, [1] * len(text), stops)
        assert scan(text, random_sizes(rng, len(text)), stops) == (shown, is_found)
        assert is_found == bool(ends)
        if ends:
            first_end = min(ends)[0]
            assert shown == text[: min(start for end, start in ends if end == first_end)]
        else:
            assert shown == text


class CountedList(list[int]):
    """Counts how often it is read."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_read += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("letters", ["a", "ab", "aab"])
def test_looking_for_stop_strings_costs_no_more_than_a_step_back_for_each_character(letters: str) -> None:
    tree = SearchTree([letters * 60 + "b" * num for num in range(1, 17)] + [f"b{letters * 80}c"])
    tree._shorter = back = CountedList(tree._shorter)
    text = letters * 2000
    scanner = StopStrings(tree)
    for start in range(0, len(text), 3):
        scanner.push(text[start : start + 3])
    assert 0 < back.num_read <= len(text)


def test_text_that_cannot_begin_a_stop_string_is_not_held_back() -> None:
    scanner = StopStrings(SearchTree(["###", "\n\n"]))
    assert scanner.push("a #") == ("a ", False)
    assert scanner.push("b") == ("#b", False)
    assert scanner.push("\n") == ("", False)
    assert scanner.flush() == "\n"
