"""Pictures in prompts: the replies of transformers' own models that see, drafted or plain, found or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decoding.cache import prefix_keeper
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Failed, PromptLogprobs
from decoding.core.picture import Numbers, Picture
from decoding.core.request import Request
from decoding.core.stats import RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.engine.engine import Engine
from decoding.engine.intake import check_pictures
from decoding.engine.start import start_engine
from decoding.errors import RequestRejected
from decoding.model.vision.seen import SeenPictures
from tests.pairs import CONFIG, GIVEN, engine_of, finish, prompt_of, reply, request_of
from tests.seeing import FAMILIES, picture
from tests.seeing_engines import LAWS, METHODS, TEXT, Family, check_against_generate, family_of


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    found = family_of(request.param)
    found.engine.start_afresh(0.0)
    return found


def test_a_reply_is_that_of_transformers_own_generate(family: Family) -> None:
    check_against_generate(family, [picture(1), picture(2, 64, 20)])
    assert family.engine.pictures is not None
    assert family.engine.pictures.num_seen == 2


@pytest.mark.parametrize("law", LAWS)
def test_drafted_replies_are_the_plain_ones(family: Family, law: str) -> None:
    images, engine = [picture(1), picture(2, 64, 20)], family.engine
    plain = reply(engine, family.request("plain", images, sampling=LAWS[law]))
    for method in METHODS:
        request = family.request(method, images, sampling=LAWS[law], method=method)
        engine.add(request)
        finish(engine)
        assert request.output.tolist() == plain, method


def test_drafts_are_accepted_and_rejected_and_of_text_alone(family: Family) -> None:
    """So that the equality above is not empty."""
    longer = replace(LAWS["greedy"], max_tokens=64)
    requests = [family.request(each, [picture(1), picture(2)], sampling=longer, method=each) for each in METHODS]
    counts = [ended(family.engine, request)[0].counts for request in requests]
    accepted, drafted = sum(each.accepted for each in counts), sum(each.drafted for each in counts)
    assert 0 < accepted < drafted
    request = requests[0]
    assert (request.keys[: len(request.prompt)] < 0).sum() == sum(each.num_rows for each in request.pictures)


def test_a_prompt_is_found_again_and_its_pictures_are_seen_once(family: Family) -> None:
    engine, images = family.engine, [picture(1), picture(2)]
    first, second, third = (family.request(name, images, sampling=LAWS["greedy"]) for name in "abc")
    assert ended(engine, first)[0].cached_tokens == 0
    stats, _ = ended(engine, second)
    assert stats.cached_tokens == (len(second.prompt) - 1) // BLOCK_LEN * BLOCK_LEN
    engine.pool.forget()
    assert ended(engine, third)[0].cached_tokens == 0
    assert first.output.tolist() == second.output.tolist() == third.output.tolist()
    assert engine.pictures is not None
    assert engine.pictures.num_seen == 2


def test_pictures_that_differ_in_a_pixel_share_no_rows(family: Family) -> None:
    """What layers carry after what is common is kept once the second has begun with it, so the third is asked."""
    engine, images = family.engine, [picture(1)]
    for colour in ((255, 255, 255), (0, 0, 0)):
        images.append(images[0].copy())
        images[-1].putpixel((20, 15), colour)
    text = "a" * BLOCK_LEN + "IMAGE" + TEXT.replace("IMAGE", "")
    requests = [
        family.request(name, [each], text, sampling=LAWS["greedy"]) for name, each in zip("abc", images, strict=True)
    ]
    stats = [ended(engine, request)[0] for request in requests]
    before = next(place for place, key in enumerate(requests[0].keys) if key < 0)
    assert stats[2].cached_tokens == before // BLOCK_LEN * BLOCK_LEN > 0
    engine.start_afresh(0.0)
    alone = family.request("alone", images[2:], text, sampling=LAWS["greedy"])
    ended(engine, alone)
    assert alone.output.tolist() == requests[2].output.tolist()
    assert len({request.keys[: len(request.prompt)].tobytes() for request in requests}) == 3


def test_requests_with_and_without_pictures_share_steps(family: Family) -> None:
    engine, images = family.engine, [picture(1), picture(2)]
    alone = [reply(engine, each) for each in requests_of(family, images)]
    engine.start_afresh(0.0)
    together = requests_of(family, images)
    for each in together:
        engine.add(each)
    finish(engine)
    assert [each.output.tolist() for each in together] == alone


def requests_of(family: Family, images: list[Image.Image]) -> list[Request]:
    text = request_of("text", prompt_of(40), LAWS["sampled"], "auto")
    seen = [
        family.request(f"{number}", images[number:], TEXT.replace("IMAGE", "", number), sampling=law, method="auto")
        for number, law in enumerate(LAWS.values())
    ]
    return [text, *seen]


def test_a_prompt_that_is_read_in_small_steps_has_the_same_reply(family: Family) -> None:
    images = [picture(1), picture(2, 64, 20)]
    plain = reply(family.engine, family.request("plain", images, sampling=LAWS["sampled"]))
    small = start_engine(family.engine.model, replace(CONFIG, max_batch_rows=24), kept=GIVEN)
    request = family.request("small", images, sampling=LAWS["sampled"])
    stats, _ = ended(small, request)
    assert request.output.tolist() == plain
    assert stats.prefill_chunks >= len(request.prompt) // 24


def test_a_prompt_that_is_found_ends_before_or_after_tokens_that_see_each_other() -> None:
    family = family_of("gemma3")
    family.engine.start_afresh(0.0)
    texts = ["a" * length + "IMAGE and then what" for length in range(1, BLOCK_LEN + 1)]
    expected = [reply(family.engine, family.request(text, [picture(1)], text)) for text in texts]
    for text, output in zip(texts, expected, strict=True):
        request = family.request(text + "again", [picture(1)], text)
        stats, _ = ended(family.engine, request)
        assert request.output.tolist() == output
        is_row = request.keys[: len(request.prompt)] < 0
        found = stats.cached_tokens
        assert not (is_row[found - 1] and is_row[found]) if found else is_row[BLOCK_LEN - 1 : BLOCK_LEN + 1].all()


def test_a_picture_whose_tokens_see_each_other_must_fit_into_a_step() -> None:
    family = family_of("gemma3")
    request = family.request("long", [picture()], "IMAGE what")
    with pytest.raises(
        RequestRejected, match="a picture has 16 tokens, which this model reads in one step; one of this"
    ):
        check_pictures(request, family.engine.model.tower, None, 15)


def test_log_probabilities_of_a_prompt_whose_picture_is_read_whole_are_the_same_in_small_steps() -> None:
    family, images = family_of("gemma3"), [picture(1), picture(2, 64, 20)]
    sampling = replace(LAWS["greedy"], prompt_logprobs=1)
    told = []
    for rows in (None, 24):
        engine = start_engine(family.engine.model, replace(CONFIG, max_batch_rows=rows), kept=GIVEN)
        engine.add(family.request(f"{rows}", images, sampling=sampling))
        engine.add(family.request(f"{rows} too", images[1:], "IMAGE what", sampling=sampling))
        scored: dict[str, list[TokenLogprobs | None]] = {"": [], " too": []}
        while engine.has_work:
            for event in engine.step().of(PromptLogprobs):
                scored[event.request_id.removeprefix(str(rows))] += event.logprobs
        told.append(scored)
    assert told[0] == told[1]
    assert all(len(each) > 16 for each in told[0].values())


def test_a_preempted_or_resumed_reply_is_the_same(family: Family) -> None:
    engine, images = family.engine, [picture(1), picture(2)]
    plain = reply(engine, family.request("plain", images, sampling=LAWS["sampled"]))
    request = family.request("again", images, sampling=LAWS["sampled"], method="auto")
    engine.add(request)
    while request.num_output < 4:
        engine.step()
    engine._scheduler._preempt(next(iter(engine._scheduler.running)))
    stats = finish(engine)[0]["again"]
    assert (stats.preemptions, request.output.tolist()) == (1, plain)
    engine.start_afresh(0.0)
    resumed = replace(request, id="resumed", resumed=np.array(plain[:9], np.int32))
    assert reply(engine, resumed) == plain


def test_a_model_of_text_refuses_pictures(family: Family) -> None:
    pictures = family.request("seen", [picture()], "IMAGE what").pictures
    request = replace(request_of("text", prompt_of(40)), pictures=pictures)
    with pytest.raises(RequestRejected, match=r"a picture cannot be read: its tower was not loaded"):
        engine_of("llama").add(request)


@pytest.mark.parametrize("text", ["what IMAGE", "IMAGE what IMAGE"])
def test_pictures_must_stand_where_the_prompt_says(family: Family, text: str) -> None:
    request = family.request("odd", [picture()], "IMAGE what")
    request.prompt[-1] = family.engine.model.tower.image_token_id if text.endswith("IMAGE") else 5
    with pytest.raises(RequestRejected, match="picture"):
        family.engine.add(request)


def test_a_picture_that_the_tower_cannot_read_ends_its_request_alone(family: Family) -> None:
    engine = family.engine
    good, bad = (family.request(name, [picture()], "IMAGE what") for name in ("good", "bad"))
    broken = Picture(b"broken", {"pixel_values": Numbers("float32", (1, 1), bytes(4))}, bad.pictures[0].spans)
    bad = replace(bad, pictures=(broken,))
    engine.add(good)
    engine.add(bad)
    failed = []
    while engine.has_work:
        failed += engine.step().of(Failed)
    assert [(each.request_id, each.message.split(" failed")[0]) for each in failed] == [("bad", "The tower")]
    assert good.num_output == 32


def test_rows_are_kept_within_their_bytes(family: Family) -> None:
    tower, pictures = (
        family.engine.model.tower,
        [family.request("a", [picture(seed)], "IMAGE what").pictures for seed in range(3)],
    )
    assert tower is not None
    seen = SeenPictures(tower, 1)
    for each in (*pictures, *pictures):
        rows = seen.see(each).result()
        assert seen.num_bytes == rows[0].nbytes
    assert seen.num_seen == 6


def test_a_prompt_kept_in_files_is_found_by_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another engine, which need not see the picture again to go on, and never by another picture."""
    monkeypatch.setattr(prefix_keeper, "LEAST_BLOCKS", 1)
    family, config = family_of("idefics3"), replace(CONFIG, prefix_dir=str(tmp_path))
    requests = [
        family.request(
            f"{number}", [image], "a" * BLOCK_LEN + "IMAGE" + TEXT.replace("IMAGE", ""), sampling=LAWS["greedy"]
        )
        for number, image in enumerate((picture(1), picture(1), picture(2)))
    ]
    first, second = (start_engine(family.engine.model, config, kept=GIVEN) for _ in range(2))
    ended(first, requests[0])
    first.close(10.0)
    found, _ = ended(second, requests[1])
    assert found.cached_tokens == (len(requests[1].prompt) - 1) // BLOCK_LEN * BLOCK_LEN
    assert second.stats().kept_tokens == found.cached_tokens
    assert requests[0].output.tolist() == requests[1].output.tolist()
    other, _ = ended(second, requests[2])
    before = next(place for place, key in enumerate(requests[2].keys) if key < 0)
    assert other.cached_tokens == before // BLOCK_LEN * BLOCK_LEN


def ended(engine: Engine, request: Request) -> tuple[RequestStats, Request]:
    engine.add(request)
    return finish(engine)[0][request.id], request
