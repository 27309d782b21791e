"""The state of a session may come from anyone: it is refused and changes nothing, or it serves like any other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.session_info import SessionState
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.costs.price import DraftBudget
from decoding.drafting.registry import start
from decoding.sampling.verify import walk
from decoding.stores.session import Session
from decoding.stores.session_store import SessionLimits, SessionStore

VOCABULARY, WIDTH = 50, 10
TYPES = {  # of the arrays of each store
    "ngrams": (np.uint64, np.int64, np.int32, np.int32, np.float32, np.int64),
    "replies": (np.int32, np.int64, np.int64, np.int64),
    "greedy": (np.float32,) * 7,
    "sampled": (np.float32,) * 7,
}
Stores = dict[str, list[bytes]]


def new_store() -> SessionStore:
    return SessionStore(SessionLimits(2**16, 2**24, 2**24))


def requests_on(session: Session, methods: tuple[str, ...], num_steps: int) -> None:
    """What requests do with a session, which raises nothing and proposes trees that are trees."""
    target = np.random.default_rng(1)
    for method, temperature in ((method, temperature) for method in methods for temperature in (0.0, 1.0)):
        prompt = target.integers(0, VOCABULARY, 20, np.int32)
        sampling = SamplingParams(max_tokens=200, temperature=temperature, seed=3)
        request = Request(id="test", prompt=prompt, sampling=sampling, speculation=SpeculationParams(method=method))
        drafter = start(method, request, session)
        for _ in range(num_steps):
            tree = drafter.propose(DraftBudget(24))
            tree.check_integrity()
            assert np.all((tree.tokens >= 0) & (tree.tokens < VOCABULARY))
            ids = target.random((len(tree), VOCABULARY)).argsort(axis=1)[:, :WIDTH].astype(np.int32)
            verdict = walk(tree, ids[:, 0].copy())
            request.extend(verdict.tokens)
            top = TopTokens(ids, np.tile(np.float32(0.5) ** np.arange(1, WIDTH + 1, dtype=np.float32), (len(ids), 1)))
            drafter.observe(tree, verdict, top if drafter.num_top else None)
        session.replies.extend(request.tokens, -1)


def used_stores(num_steps: int) -> Stores:
    session = new_store().open("alice", "chat")
    requests_on(session, ("auto",), num_steps)
    return session.state().stores


def leave_out_store(stores: Stores, name: str, _: Random) -> None:
    del stores[name]


def empty_store(stores: Stores, name: str, _: Random) -> None:
    stores[name] = []


def rename_store(stores: Stores, name: str, random: Random) -> None:
    stores[random.choice(("", "context", *TYPES))] = stores.pop(name)


def leave_out_array(stores: Stores, name: str, random: Random) -> None:
    if stores[name]:
        del stores[name][random.randrange(len(stores[name]))]


def add_array(stores: Stores, name: str, random: Random) -> None:
    stores[name].insert(random.randrange(len(stores[name]) + 1), random.randbytes(random.choice((0, 8, 4096))))


def shuffle_arrays(stores: Stores, name: str, random: Random) -> None:
    random.shuffle(stores[name])


def resize_arrays(stores: Stores, name: str, random: Random) -> None:
    """All of them by the same factor, as a larger or a smaller store would have them, or one by a few bytes."""
    factor = random.choice((0, 0.5, 2, 2**12))
    if random.random() < 0.5:
        stores[name] = [(each * 2**12)[: int(len(each) * factor)] for each in stores[name]]
    elif stores[name]:
        place = random.randrange(len(stores[name]))
        stores[name][place] = stores[name][place][: -random.randint(1, 9)]


def randomise_array(stores: Stores, name: str, random: Random) -> None:
    if stores[name]:
        place = random.randrange(len(stores[name]))
        stores[name][place] = random.randbytes(len(stores[name][place]))


def spoil_numbers(stores: Stores, name: str, random: Random) -> None:
    """A few numbers of an array, or all, become one that a type has at its ends."""
    if len(stores[name]) != len(TYPES.get(name, ())):
        return
    place = random.randrange(len(stores[name]))
    kind = TYPES[name][place]
    array = np.frombuffer(stores[name][place][: len(stores[name][place]) // 8 * 8], kind).copy()
    if np.issubdtype(kind, np.floating):
        extremes = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, 1e-45, 3e38, -3e38]
    else:
        ends = np.iinfo(kind)
        extremes = [ends.min, ends.max, ends.max - 1, 0, 1, VOCABULARY - 1, VOCABULARY, 2**29]
        extremes += [-1, -2] if ends.min < 0 else []
    value = random.choice(extremes)
    for _ in range(random.choice((1, 1, 5, 2 * len(array)))):
        if len(array):
            array[random.randrange(len(array))] = value
    stores[name][place] = array.tobytes()


SPOILS: tuple[Callable[[Stores, str, Random], None], ...] = (
    leave_out_store,
    empty_store,
    rename_store,
    leave_out_array,
    add_array,
    shuffle_arrays,
    resize_arrays,
    randomise_array,
    *(spoil_numbers,) * 6,
)


@pytest.mark.parametrize("seed", range(4))
def test_strange_state_is_refused_and_changes_nothing_or_serves_like_any_other(seed: int) -> None:
    random, whole = Random(seed), [used_stores(3), used_stores(40)]
    store, num_refused, num_taken = new_store(), 0, 0
    store.restore(SessionState("alice", "chat", whole[0]), VOCABULARY)
    before = store.copy("alice", "chat")
    for number in range(250):
        stores = {name: list(arrays) for name, arrays in random.choice(whole).items()}
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            if stores:
                random.choice(SPOILS)(stores, random.choice(list(stores)), random)
        name = f"strange {number}"
        try:
            store.restore(SessionState("alice", name, stores), VOCABULARY)
        except ValueError:
            num_refused += 1
            assert store.copy("alice", name) is None
            with pytest.raises(ValueError, match=r"^its? "):
                store.restore(SessionState("alice", "chat", stores), VOCABULARY, replaces=True)
            assert store.copy("alice", "chat") == before
        else:
            num_taken += 1
            requests_on(store.open("alice", name), ("auto", "stand", "suffix"), 2)
            taken = store.copy("alice", name)
            assert taken is not None
            new_store().restore(taken, VOCABULARY)  # what came of it is a session
        store.check_integrity()
    assert min(num_refused, num_taken) > 20, (num_refused, num_taken)


@pytest.mark.parametrize("stores", [{name: []} for name in TYPES] + [{name: [b""]} for name in TYPES], ids=str)
def test_a_store_without_arrays_is_refused(stores: Stores) -> None:
    store = new_store()
    with pytest.raises(ValueError, match=r"^its store '"):
        store.restore(SessionState("alice", "chat", stores), VOCABULARY)
    assert len(store) == 0


def test_what_a_session_becomes_by_much_use_is_never_refused() -> None:
    """Also where its stores are full and lose what is oldest."""
    session = new_store().open("alice", "chat")
    for _ in range(5):
        requests_on(session, ("auto", "stand"), 40)
        restored = new_store()
        restored.restore(session.state(), VOCABULARY)
        assert restored.copy("alice", "chat") == session.state()
    assert sum(session.ngrams.num_entries) == session.ngrams.arrays.keys.size, "the store is not full"


def test_a_session_that_replaces_another_is_told_as_no_forgotten_one() -> None:
    store, state = new_store(), SessionState("alice", "chat", used_stores(3))
    store.restore(state, VOCABULARY)
    later = SessionState("alice", "chat", used_stores(5))
    store.restore(later, VOCABULARY)
    assert store.copy("alice", "chat") == state
    store.restore(later, VOCABULARY, replaces=True)
    assert store.copy("alice", "chat") == later
    assert (store.take_forgotten(), store.take_changed()) == ([], None)
    store.check_integrity()
