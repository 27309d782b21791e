"""Room for a few states: no more exist than were announced, and many chats in it are answered as if each were alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.state_pool import StatePool
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import StepStats
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.memory import state_room
from decoding.model.target_model import TargetModel
from tests.pairs import CONFIG, GIVEN, finish, prompt_of, reply, request_of, target_of

NUM_STATES = 8
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
NUM_CHATS, NUM_TURNS = 32, 10
METHODS = ("none", "auto", "spine", "lookup")
MOST_STEPS = 20_000


@pytest.fixture(scope="module")
def target() -> TargetModel:
    target = target_of("lfm2")
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    return target


def tight_engine(target: TargetModel) -> Engine:
    config = replace(CONFIG, kv_memory=float(2 * NUM_STATES * target.state_bytes), kv_slots=2048)
    engine = start_engine(target, config, kept=GIVEN)
    room = state_room(config, target.device, target.state_bytes, engine.limits.max_running)
    assert room.num_bytes == NUM_STATES * target.state_bytes
    assert (engine.limits.max_running, states_of(engine).max_checkpoints) == (room.max_running, room.max_checkpoints)
    return engine


def states_of(engine: Engine) -> StatePool:
    assert engine.pool.states is not None
    return engine.pool.states


def test_no_more_states_exist_than_announced_also_where_one_makes_way_for_another(target: TargetModel) -> None:
    engine = tight_engine(target)
    for place in range(states_of(engine).max_checkpoints):
        reply(engine, request_of(f"before {place}", prompt_of(40, place)))
    for place in range(engine.limits.max_running):
        engine.add(replace(request_of(f"{place}", prompt_of(40, 10 + place), GREEDY), tenant="who holds all places"))
    for _ in range(8):  # until none of them shares a checkpoint's state any more
        engine.step()
    engine.add(replace(request_of("later", prompt_of(40, 20), GREEDY), tenant="who waits"))
    ended, _ = finish(engine)
    assert sum(stats.preemptions for stats in ended.values()) > 0
    announced = NUM_STATES * target.state_bytes
    assert 0.95 * announced <= engine.stats().state_bytes <= announced


@dataclass
class Chat:
    """turns: of each its request."""

    number: int
    turns: list[Request] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.number} {len(self.turns)}"

    def next_turn(self, system: IntArray) -> Request:
        history = self.turns[-1].tokens if self.turns else system
        prompt = np.concatenate((history, prompt_of(6, 1000 + NUM_TURNS * self.number + len(self.turns))))
        law = replace(GREEDY, max_tokens=6, temperature=0.7 * (self.number % 2), seed=self.number)
        self.turns.append(request_of(self.name, prompt, law, METHODS[self.number % len(METHODS)], max_nodes=4))
        return self.turns[-1]


@pytest.mark.slow
def test_32_chats_of_ten_turns_in_room_for_8_states_are_answered_as_alone(target: TargetModel) -> None:
    engine, system = tight_engine(target), prompt_of(3 * BLOCK_LEN, 0)
    chats = [Chat(number) for number in range(NUM_CHATS)]
    for chat in chats:
        engine.add(chat.next_turn(system))
    steps: list[StepStats] = []
    num_cached = num_ended = 0
    for _ in range(MOST_STEPS):
        if not engine.has_work:
            break
        result = engine.step()
        engine.pool.check_integrity()
        steps += [result.stats] if result.stats else []
        for ended in result.of(Finished):
            num_ended += 1
            num_cached += ended.stats.cached_tokens
            chat = chats[int(ended.request_id.split()[0])]
            if len(chat.turns) < NUM_TURNS:
                engine.add(chat.next_turn(system))
    assert num_ended == NUM_CHATS * NUM_TURNS
    assert sum(step.prefix_hits for step in steps) == num_cached > 0
    assert engine.stats().state_bytes <= NUM_STATES * target.state_bytes
    roomy = start_engine(target, CONFIG, kept=GIVEN)
    for chat in chats:
        for turn in chat.turns:
            alone = request_of("alone", turn.prompt, turn.sampling)
            assert reply(roomy, alone) == turn.output.tolist(), (chat.number, turn.id)
