"""A model divided between two processes: drafted replies are the plain ones, and those of one process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.batch import Segment, pack
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.core.picture import Numbers, Picture, Span
from decoding.core.request import Request
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.errors import ConfigError, RankDied, RequestRejected
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.device.runner import silent
from decoding.model.parallel import leader
from decoding.model.parallel.leader import LeadModel
from decoding.model.target_model import TargetModel
from tests.heads import new_head
from tests.models import correlated, tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, NOISE, SAMPLED, finish, prompt_of, reply, request_of, write_tokenizer
from tests.rerunning_shard import BUCKETS, RerunningCapture
from tests.seeing import tiny_seeing

SIZE = 2
METHODS = ("none", "spine", "stand", "auto", "lookup", "dynamic")
TOLERANCE = 1e-4  # of float32 logits of about 10


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Of one process. Prompts come in chunks."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    tiny("llama").save_pretrained(write_tokenizer(target))
    correlated("llama", NOISE).save_pretrained(write_tokenizer(draft))
    return replace(CONFIG, model=str(target), draft_model=str(draft), device="cpu", max_batch_rows=24)


@pytest.fixture(scope="module")
def alone(config: EngineConfig) -> Engine:
    return load_engine(config, kept=GIVEN)


@pytest.fixture(scope="module")
def divided(config: EngineConfig) -> Iterator[Engine]:
    """With room for a few requests at a time."""
    before = shards()
    engine = load_engine(replace(config, tensor_parallel_size=SIZE, kv_slots=512), kept=GIVEN)
    assert len(shards() - before) == SIZE - 1
    yield engine
    engine.model.close()  # type: ignore[attr-defined]


def shards() -> set[int]:
    """The processes of other ranks."""
    pids = {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
    return {pid for pid in pids if b"_shard" in (line := _command(pid)) or b"worker.shard" in line}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def asked(name: str, prompt: NDArray[np.int32], number: int, method: str) -> Request:
    return request_of(name, prompt, (GREEDY, SAMPLED)[number % 2], method)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_gives_the_tokens_of_plain_decoding_and_of_one_process(
    alone: Engine, divided: Engine, method: str
) -> None:
    assert divided.is_exact == alone.is_exact
    for number in range(2):
        prompt = prompt_of(60, number)
        expected = reply(alone, asked(f"alone {method} {number}", prompt, number, "none"))
        plain = reply(divided, asked(f"plain {method} {number}", prompt, number, "none"))
        assert reply(divided, asked(f"{method} {number}", prompt, number, method)) == plain
        assert plain == expected


def test_requests_that_share_prompts_and_give_up_their_blocks_get_the_same_tokens(
    alone: Engine, divided: Engine
) -> None:
    """Prompts in chunks, prefix hits, copied blocks and preemption, all in one run."""
    prompts = [np.concatenate((prompt_of(70, 0), prompt_of(9 * (number % 4), number))) for number in range(12)]
    expected = [reply(alone, asked(f"alone {number}", prompt, number, "none")) for number, prompt in enumerate(prompts)]
    requests = [
        asked(f"shared {number}", prompt, number, METHODS[number % len(METHODS)])
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        divided.add(request)
    ended, steps = finish(divided, with_guest=True)
    assert [request.output.tolist() for request in requests] == expected
    assert sum(stats.preemptions for stats in ended.values()) > 0
    assert sum(stats.cached_tokens for stats in ended.values()) > 0
    assert sum(stats.target_forwards for stats in ended.values()) < sum(map(len, expected)), "drafts were accepted"
    assert max(step.prefill_rows for step in steps) < len(prompts[0]), "prompts came in chunks"


def test_a_divided_model_reads_text_alone(divided: Engine) -> None:
    picture = Picture(b"picture", {"pixel_values": Numbers("float32", (1,), bytes(4))}, (Span(2, 1),))
    with pytest.raises(RequestRejected, match=r"a picture cannot be read: it is divided \(--tensor-"):
        divided.add(replace(asked("sees", prompt_of(20), 0, "none"), pictures=(picture,)))


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_the_text_part_of_a_model_that_sees_is_divided(kind: str, tmp_path: Path) -> None:
    """And replies to text as it does undivided."""
    own = tiny_seeing(kind, tmp_path)
    engine = load_engine(replace(CONFIG, model=str(tmp_path), device="cpu", tensor_parallel_size=SIZE), kept=GIVEN)
    try:
        assert engine.model.tower is None
        prompt = prompt_of(30) % 200 + 3
        with torch.inference_mode():
            expected = own.generate(torch.from_numpy(prompt)[None].long(), max_new_tokens=12, do_sample=False)
        request = request_of("text", prompt, replace(GREEDY, max_tokens=12, ignore_eos=False))
        assert reply(engine, request) == expected[0, len(prompt) :].tolist()
    finally:
        engine.model.close()  # type: ignore[attr-defined]


def test_a_rank_holds_its_share_and_the_start_says_so(alone: Engine, divided: Engine) -> None:
    whole, part = alone.model, divided.model
    assert part.num_parameters == whole.num_parameters
    assert part.bytes_per_slot * SIZE == whole.bytes_per_slot
    layers = [each.numel() for name, each in tiny("llama").named_parameters() if "_proj" in name]
    assert whole.num_bytes - part.num_bytes == sum(layers) * 4 // SIZE
    assert part.fingerprint != whole.fingerprint, "sums are in another order"
    assert divided.expected_bytes > alone.expected_bytes, "of both ranks"


@pytest.mark.parametrize("model_type", ["qwen2_moe", "qwen3_moe"])
def test_logits_are_those_of_one_process_until_a_rank_dies(tmp_path: Path, model_type: str) -> None:
    tiny(model_type).save_pretrained(tmp_path)
    config = replace(CONFIG, model=str(tmp_path), device="cpu")
    before = shards()
    divided = replace(config, tensor_parallel_size=SIZE)
    whole, part = TargetModel.load(config, silent), LeadModel.load(divided, silent)
    for expected, found in zip(logits_of(whole), logits_of(part), strict=True):
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    engine = start_engine(part, divided, draft_model=HeadModel(new_head(part.shared.embeddings), part), kept=GIVEN)
    for number in range(2):
        plain = reply(engine, asked(f"plain {number}", prompt_of(30, number), number, "none"))
        assert reply(engine, asked(f"eagle {number}", prompt_of(30, number), number, "eagle")) == plain, "by a head"
    store = part.new_store(4)
    (pid,) = shards() - before
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RankDied, match="rank 1"):
        store.clear()
    part.close()


def logits_of(model: TargetModel) -> Iterator[torch.Tensor]:
    """Of a prompt, of a tree, and of what follows a path of it after a block was copied."""
    cache = KvCache(model.new_store(20))
    rows, store = cache.new_rows(100), cache.store
    yield model.forward(pack([Segment(rows, prompt_of(30, 0))], store))
    store.commit(rows, np.arange(30))
    yield model.forward(pack([Segment(rows, prompt_of(5, 1), np.array([-1, 0, 0, 1, 2], np.int32))], store))
    store.commit(rows, np.array([0, 2, 4]))
    before = int(rows.table.blocks[0])
    other = next(block for block in range(20) if block not in rows.table.blocks)
    store.copy_block(before, other)
    rows.table.blocks[0] = other
    store.copy_block(int(rows.table.blocks[1]), before)  # were the old one read, it would show
    yield model.forward(pack([Segment(rows, prompt_of(3, 2))], store))


def test_captured_forwards_are_replayed_on_every_rank(
    config: EngineConfig, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "COMMAND", (sys.executable, "-m", "tests.rerunning_shard"))
    monkeypatch.setattr(leader, "capture_on", lambda _device: RerunningCapture())
    monkeypatch.setattr(graph_runner, "BUCKETS", BUCKETS)
    small = replace(config, attention="padded", tensor_parallel_size=SIZE, max_model_len=160, kv_slots=2048)
    engine = load_engine(replace(small, max_batch_rows=64, max_nodes=16, draft_model="none"), kept=GIVEN)
    assert isinstance(engine._runner, GraphRunner)
    for number in range(2):
        prompt = prompt_of(40, number)  # more than a captured forward holds
        expected = reply(alone, asked(f"alone {number}", prompt, number, "none"))
        for method in ("none", "auto"):
            asked_for = request_of(f"{method} {number}", prompt, (GREEDY, SAMPLED)[number], method, max_nodes=16)
            assert reply(engine, asked_for) == expected
    engine.model.close()  # type: ignore[attr-defined]


def test_what_cannot_be_divided_starts_no_process(config: EngineConfig) -> None:
    before = shards()
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 3, and it does not divide"):
        load_engine(replace(config, tensor_parallel_size=3))
    assert shards() == before
