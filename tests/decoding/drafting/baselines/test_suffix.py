"""SuffixDecoding by hand on tiny texts, and against a slow reading of the paper's counts on random ones."""

import numpy as np

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget
from decoding.drafting.baselines.suffix import SuffixDrafter
from decoding.stores.session import Session, lone_session
from decoding.stores.suffixes import SuffixIndex, find_occurrences

FLOOR = 0.1
VOCABULARY = 5


def new_session() -> Session:
    return lone_session(2**20)


def request_of(prompt: list[int], *without: str) -> Request:
    speculation = SpeculationParams(method="suffix", without=frozenset(without))
    sampling = SamplingParams(max_tokens=300, temperature=0.0)
    return Request(id="test", prompt=np.array(prompt, np.int32), sampling=sampling, speculation=speculation)


def tree_of(prompt: list[int], *without: str, session: Session | None = None, budget: int = 60) -> DraftTree:
    tree = SuffixDrafter(request_of(prompt, *without), session or new_session()).propose(DraftBudget(budget))
    tree.check_integrity()
    return tree


def remember(session: Session, *replies: list[int]) -> None:
    for reply in replies:
        session.replies.extend(np.array(reply, np.int32), -1)


def edges(tree: DraftTree) -> list[tuple[int, int]]:
    return list(zip(tree.parents[1:].tolist(), tree.tokens[1:].tolist(), strict=True))


def test_a_text_that_is_new_drafts_nothing() -> None:
    assert tree_of([1, 2, 3, 4]).num_drafted == 0


def test_as_many_nodes_are_drafted_as_tokens_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert tree_of([*text, 3]).tokens.tolist() == [3, 4]
    assert tree_of([*text, 2, 3]).tokens.tolist() == [3, 4, 5]
    assert tree_of([*text, 1, 2, 3]).tokens.tolist() == [3, 4, 5, 6]
    assert tree_of([*text, 1, 2, 3], budget=2).tokens.tolist() == [3, 4, 5]


def test_shares_are_those_of_the_counts_and_the_likeliest_goes_first() -> None:
    # after 1 2 3 came 4 twice and 5 once; after 4 came 6 and 7
    session = new_session()
    remember(session, [1, 2, 3, 4, 6], [1, 2, 3, 5, 8], [1, 2, 3, 4, 7])
    tree = tree_of([9, 1, 2, 3], session=session)
    # 2/3 for 4, then 1/3 for 5, and of 4's children, which have as much, the later one
    assert edges(tree) == [(0, 4), (0, 5), (1, 7)]
    assert set(tree.sources[1:].tolist()) == {int(Source.NGRAM)}
    chain = tree_of([9, 1, 2, 3], "branches", session=session)
    assert edges(chain) == [(0, 4), (1, 7)]


def test_what_has_less_than_a_tenth_is_left_out() -> None:
    session = new_session()
    remember(session, *([1, 2, 3, 4, 50 + number] for number in range(11)), [1, 2, 3, 4, 80], [1, 2, 3, 4, 80])
    # 80 has 2 of 13, the others 1 of 13 each
    assert edges(tree_of([1, 2, 3, 4], session=session)) == [(0, 80)]


def test_the_better_of_request_and_session_is_taken() -> None:
    session = new_session()
    remember(session, [1, 2, 3, 4, 5, 6])
    longer = tree_of([2, 3, 9, 9, 1, 2, 3], session=session)  # the request matches two tokens, the session three
    assert longer.tokens.tolist() == [3, 4, 5, 6]
    assert longer.sources[1] == Source.NGRAM
    own = tree_of([1, 2, 3, 9, 9, 1, 2, 3], session=session)
    assert own.tokens.tolist() == [3, 9, 9, 1]
    assert own.sources[1] == Source.CONTEXT


def test_a_session_learns_replies_as_they_come_and_never_prompts() -> None:
    session = new_session()
    first = request_of([1, 2, 3, 4, 5, 6])
    drafter = SuffixDrafter(first, session)
    tree = drafter.propose(DraftBudget(4))
    assert tree_of([2, 3], session=session).num_drafted == 0
    for token in (20, 21, 22):
        first.extend(np.array([token], np.int32))
    drafter.propose(DraftBudget(4))
    assert tree.num_drafted == 0
    assert tree_of([20, 21], session=session).tokens.tolist() == [21, 22]
    beside = SuffixDrafter(request_of([7]), session)  # replies that grow side by side do not run into each other
    beside.propose(DraftBudget(4))
    first.extend(np.array([23], np.int32))
    drafter.propose(DraftBudget(4))
    assert tree_of([20, 21, 22], session=session).tokens.tolist() == [22, 23]


Path = tuple[int, ...]


def occurrences(sequences: list[list[int]], text: Path) -> int:
    return sum(tuple(each[at : at + len(text)]) == text for each in sequences for at in range(len(each)))


def share_of(sequences: list[list[int]], suffix: Path, path: Path) -> float:
    """D of the paper: each token's count over those of all tokens in its place, multiplied along the path."""
    share = 1.0
    for depth in range(len(path)):
        before = suffix + path[:depth]
        siblings = sum(occurrences(sequences, (*before, token)) for token in range(VOCABULARY))
        share *= occurrences(sequences, (*before, path[depth])) / max(1, siblings)
    return share


def best_sum(sequences: list[list[int]], text: Path, budget: int) -> float:
    """The largest sum of shares that greedy growth reaches, over all lengths of match."""
    best = 0.0
    for length in range(1, len(text) + 1):
        suffix, grown, waiting, total = text[-length:], 0, dict[Path, float](), 0.0
        latest: Path = ()
        while grown < min(budget, length):
            for token in range(VOCABULARY):
                share = share_of(sequences, suffix, (*latest, token))
                if share >= FLOOR:
                    waiting[(*latest, token)] = share
            if not waiting:
                break
            latest = max(waiting, key=lambda path: waiting[path])
            total += waiting.pop(latest)
            grown += 1
        best = max(best, total)
    return best


def test_the_compiled_growth_has_the_sum_of_shares_that_counting_substrings_finds() -> None:
    random = np.random.default_rng(5)
    drafted = 0
    for _ in range(25):
        session = new_session()
        replies = [random.integers(0, VOCABULARY, int(random.integers(1, 30))).tolist() for _ in range(3)]
        remember(session, *replies)
        prompt, budget = (
            random.integers(0, VOCABULARY, int(random.integers(1, 40))).tolist(),
            int(random.integers(1, 9)),
        )
        tree = tree_of(prompt, session=session, budget=budget)
        paths: list[Path] = [()]
        for parent, token in edges(tree):
            paths.append((*paths[parent], token))
        text, sums = tuple(prompt), []
        for sequences in ([prompt], replies):
            for length in range(1, len(text) + 1):
                sums.append(sum(share_of(sequences, text[-length:], path) for path in paths[1:]))
        best = max(best_sum(sequences, text, budget) for sequences in ([prompt], replies))
        assert any(abs(found - best) < 1e-9 for found in sums), (best, sums)
        drafted += tree.num_drafted
    assert drafted > 25


def test_a_full_index_overwrites_its_oldest_tokens_and_keeps_within_its_bytes() -> None:
    random = np.random.default_rng(1)
    index = SuffixIndex(2**14)
    text = random.integers(0, 50, 3000).astype(np.int32)
    last = -1
    for start in range(0, 3000, 7):
        last = index.extend(text[start : start + 7], last)
    assert index.num_bytes <= 2**14
    num_kept = len(index.arrays.tokens)
    assert 100 < num_kept < 500
    found = find_occurrences(index.arrays, text[-1:])
    expected = [at for at in range(3000 - num_kept, 2999) if text[at] == text[-1]]
    assert sorted(found.positions.tolist()) == expected
    assert len(expected) > 0
    old = index.extend(np.array([3, 4], np.int32), 5)  # its last token is long forgotten: a sequence of its own
    assert old == 3001
    assert find_occurrences(index.arrays, np.array([4], np.int32)).lengths.max() == 1
