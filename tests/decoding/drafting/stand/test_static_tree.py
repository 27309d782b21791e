"""Static trees: what is one, the files, and drafting along them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import DraftBudget
from decoding.drafting.registry import METHODS
from decoding.drafting.sources import Sources
from decoding.drafting.stand.static_tree import StaticTree, read_tree, shipped_tree, write_tree
from decoding.errors import ConfigError
from decoding.stores.session_store import SessionLimits, SessionStore


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [([-1, 1], [0, 0]), ([-1, 0, 0], [0, 0, 2]), ([-1, 0, 0], [0, 0, 0]), ([0, 0], [0, 0]), ([], [])],
)
def test_what_is_no_tree_is_refused(parents: list[int], ranks: list[int]) -> None:
    with pytest.raises(AssertionError):
        StaticTree(made={}, parents=parents, ranks=ranks)


def test_a_tree_survives_its_file(tmp_path: Path) -> None:
    tree = StaticTree(made={"by": "test"}, parents=[-1, 0, 0, 1], ranks=[0, 0, 1, 0], counts=[0, 5, 3, 2])
    write_tree(tmp_path / "tree.json", tree)
    assert read_tree(str(tmp_path / "tree.json")) == tree


@pytest.mark.parametrize("text", ["", "{}", '{"made": {}, "parents": [-1, 0, 0], "ranks": [0, 0, 2]}'])
def test_a_file_that_holds_no_tree_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tree.json").write_text(text)
    with pytest.raises(ConfigError, match="no draft tree"):
        read_tree(str(tmp_path / "tree.json"))
    with pytest.raises(ConfigError):
        read_tree(str(tmp_path / "none.json"))


def test_a_server_with_a_tree_drafts_along_it() -> None:
    chain = StaticTree(made={}, parents=[-1, 0, 1], ranks=[0, 0, 0])
    session = SessionStore(SessionLimits(2**18, 2**24, 2**24)).open("", "tree")
    contexts = np.array([[-1, -1, -1, token] for token in range(5)], np.int32)
    session.ngrams.harvest(contexts, contexts[:, ::-1] + 1, np.tile(np.float32([0.4, 0.3, 0.2, 0.1]), (5, 1)))
    request = Request(
        id="tree",
        prompt=np.array([1], np.int32),
        sampling=SamplingParams(max_tokens=8, temperature=0.0),
        speculation=SpeculationParams(method="stand"),
    )
    drafter = METHODS["stand"].start(request, Sources(session, tree=chain))
    assert drafter.propose(DraftBudget(10)).parents.tolist() == [-1, 0, 1]


def test_the_shipped_tree_has_eighty_nodes() -> None:
    assert len(shipped_tree("general")) == 81
