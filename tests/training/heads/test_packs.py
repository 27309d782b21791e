"""Packs hold every answer once without padding, and what the target knew of them is kept as far as there is room."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoding.training.heads.texts.answers import Answer
from decoding.training.heads.texts.features import Features, fill
from decoding.training.heads.texts.packs import Pack, Places, chosen_pack, packed
from decoding.training.heads.ttt import read_pack, ttt_loss
from tests.models import tiny
from tests.training.heads.lessons import VOCAB, answers, head_of, lesson_for, target_of


def test_packs_hold_each_answer_once_and_as_many_as_fit() -> None:
    random = np.random.default_rng(0)
    many = [Answer(random.integers(0, VOCAB, length).astype(np.int32), 3) for length in random.integers(5, 90, 600)]
    packs = packed([*many, Answer(np.arange(300, dtype=np.int32), 3)], 200, 0)
    found = [answer.tokens.tobytes() for pack in packs for answer in pack.answers]
    assert sorted(found) == sorted(
        [*(each.tokens.tobytes() for each in many), np.arange(300, dtype=np.int32).tobytes()]
    )
    assert all(pack.num_tokens <= 200 or len(pack.answers) == 1 for pack in packs)
    assert np.mean([pack.num_tokens for pack in packs]) > 150
    padded = sum(len(pack.answers) * int(pack.lengths_A.max()) for pack in packs)
    assert padded < 1.1 * sum(pack.num_tokens for pack in packs)  # what attention alone pads
    again = packed([*many, Answer(np.arange(300, dtype=np.int32), 3)], 200, 0)
    assert [pack.digest for pack in packs] == [pack.digest for pack in again]
    epoch = [chosen_pack(packs, step, 1).digest for step in range(2 * len(packs))]
    assert set(epoch[: len(packs)]) == set(epoch[len(packs) :]) == {pack.digest for pack in packs}
    assert epoch[: len(packs)] != epoch[len(packs) :]


def test_places_say_of_which_text_a_token_is_and_which_rows_speak_of_answers() -> None:
    pack = Pack((Answer(np.arange(4, dtype=np.int32), 2), Answer(np.arange(3, dtype=np.int32), 1)))
    places = Places.of(pack)
    assert places.texts_T.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert places.offsets_T.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert places.ends_T.tolist() == [4, 4, 4, 4, 7, 7, 7]
    assert places.is_learned_T.tolist() == [False, True, True, False, True, True, False]


def test_what_is_kept_is_what_is_read_and_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head_of(target)
    packs = packed(answers(), 60, 0)
    assert len(packs) == 3
    plain = Features(target, None, 0)
    first = Features(target, tmp_path, 2**20)
    assert sum(fill(first, packs)) == sum(pack.num_tokens for pack in packs)
    files = list(tmp_path.glob("*/*.safetensors"))
    assert len(files) == 3
    for pack in packs:
        kept, read = first.of(pack), plain.of(pack)
        assert kept.features_TF.dtype == torch.bfloat16
        for name in ("features_TF", "hidden_TE", "likeliest_T"):
            assert torch.equal(getattr(kept, name), getattr(read, name)), name
    size = max(path.stat().st_size for path in files)
    small = Features(target, tmp_path / "small", 2 * size)
    assert list(fill(small, packs))
    assert small.is_full
    kept_bytes = sum(path.stat().st_size for path in (tmp_path / "small").glob("*/*"))
    assert 0 < kept_bytes <= 2 * size
    assert torch.equal(small.of(packs[-1]).hidden_TE, plain.of(packs[-1]).hidden_TE)


def test_a_training_step_calls_as_much_python_for_many_texts_as_for_few() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    calls = []
    for num_texts in (1, 2, 5):
        lesson, count = lesson_for(head, target, Pack(tuple(answers()[:num_texts]))), 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            loss = ttt_loss(head, read_pack(head, lesson), lesson).loss
        finally:
            sys.setprofile(None)
        loss.backward()
        calls.append(count)
    assert calls[1] == calls[2] > 0
