"""The walk follows the target's own tokens, and nothing else."""

import numpy as np
import torch

from decoding.core.tree import DraftTree, Source, chain, root_only
from decoding.sampling.verify import verify, walk


def int32(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


TREE = DraftTree(  # 9 -> 1 -> {3 -> 5, 4}; 9 -> 2
    tokens=int32(9, 1, 2, 3, 4, 5), parents=int32(-1, 0, 0, 1, 1, 3), sources=np.full(6, 1, np.int8)
)


def test_the_path_ends_where_no_child_is_the_targets_token() -> None:
    verdict = walk(TREE, int32(1, 4, 0, 0, 8, 0))
    assert verdict.path.tolist() == [0, 1, 4]
    assert verdict.tokens.tolist() == [1, 4, 8]
    assert verdict.num_accepted == 2


def test_a_wrong_root_token_still_emits_the_targets_own() -> None:
    verdict = walk(TREE, int32(7, 3, 3, 5, 5, 5))
    assert verdict.path.tolist() == [0]
    assert verdict.tokens.tolist() == [7]


def test_a_whole_chain_can_be_accepted() -> None:
    verdict = walk(chain(9, int32(1, 2, 3), Source.CONTEXT), int32(1, 2, 3, 4))
    assert verdict.tokens.tolist() == [1, 2, 3, 4]


def test_plain_decoding_is_a_tree_of_one_node() -> None:
    assert walk(root_only(9), int32(5)).tokens.tolist() == [5]


def test_the_walk_agrees_with_following_children_one_by_one() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        size = int(random.integers(1, 30))
        parents = int32(-1, *(random.integers(0, node) for node in range(1, size)))
        tokens = random.integers(0, 4, size).astype(np.int32)
        seen: set[tuple[int, int]] = set()
        for node in range(1, size):  # siblings must differ
            while (int(parents[node]), int(tokens[node])) in seen:
                tokens[node] += 1
            seen.add((int(parents[node]), int(tokens[node])))
        chosen = random.integers(0, 4, size).astype(np.int32)
        children = {(int(parents[node]), int(tokens[node])): node for node in range(1, size)}
        path = [0]
        while (path[-1], int(chosen[path[-1]])) in children:
            path.append(children[path[-1], int(chosen[path[-1]])])
        tree = DraftTree(tokens, parents, np.zeros(size, np.int8))
        tree.check_integrity()
        assert walk(tree, chosen).path.tolist() == path


class Noting:
    """Draws the first token of the row's highest value, and notes where it was asked."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def draw(self, logits_V: torch.Tensor, node: int, /) -> int:
        self.nodes.append(node)
        return int(logits_V.argmax())


def test_rows_off_the_path_are_not_drawn_from() -> None:
    sampler = Noting()
    verdict = verify(TREE, torch.eye(10)[[1, 4, 5, 4, 7, 0]], sampler)
    assert verdict.path.tolist() == sampler.nodes == [0, 1, 4]
    assert verdict.tokens.tolist() == [1, 4, 7]


def test_depths_count_edges_from_the_root() -> None:
    assert TREE.depths().tolist() == [0, 1, 1, 2, 2, 3]
    assert TREE.num_drafted == 5
