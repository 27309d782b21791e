"""A step's tensors say what the packed step says, whatever stood in the buffers before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.step_tensors import StepBuffers, StepRoom, StepTensors, Work, WorkRoom, room_of
from decoding.core.picture import RotaryPositions
from decoding.engine.ahead.batch import following
from tests.decoding.cache.test_batch import ints, store_with
from tests.trees import path_to, random_parents

ROOM = StepRoom(rows=128, logits=128, tree_rows=256, blocks=201, keys=500, work=WorkRoom(9, 4))


def work_of(batch: StepBatch) -> Work:
    """Of a backend that shares out segments."""
    return Work(np.arange(batch.num_segments, dtype=np.int32), 4)


def stage(buffers: StepBuffers, batch: StepBatch, num_rows: int) -> StepTensors:
    return buffers.stage(batch, num_rows, work_of(batch))


def sees(step: StepTensors, row: int) -> tuple[int, set[int]]:
    """The segment of a row, and the rows of its tree that it sees."""
    segment = int(step.row_segments_T[row])
    first, last = int(step.tree_offsets_B[segment]), int(step.tree_offsets_B[segment + 1])
    node = int(step.num_written_B[segment]) + row - int(step.first_rows_B[segment])
    enters, leaves = step.enters_P[first:last], step.leaves_P[first:last]
    return segment, {j for j in range(last - first) if enters[j] <= enters[node] < leaves[j]}


def batch_of(num_nodes: int, chunk: int, num_written: int, roots: int = 1) -> StepBatch:
    """A chunk with a tree behind it, a growing tree of several roots, and a chain."""
    store, (first, second, third) = store_with(20, 3, 0)
    parents = np.arange(-1, chunk + num_nodes - 1, dtype=np.int32)
    parents[chunk:] = random_parents(num_nodes, np.random.default_rng(num_nodes)) + chunk
    grown = random_parents(num_written + 9, np.random.default_rng(4))
    grown[1:roots] = -1
    segments = [
        Segment(first, np.arange(chunk + num_nodes, dtype=np.int32), parents, num_nodes),
        Segment(second, np.arange(9, dtype=np.int32), grown, num_written=num_written),
        Segment(third, ints(4, 5), None, "last"),
    ]
    return pack(segments, store)


@pytest.mark.parametrize("shape", [(65, 0, 0, 1), (30, 12, 40, 3), (1, 5, 1, 1)])
def test_rows_see_their_paths_and_padding_is_nobodys(shape: tuple[int, int, int, int]) -> None:
    num_rows, batch = 96, batch_of(*shape)
    buffers = StepBuffers(batch.store, ROOM)
    stage(buffers, batch_of(60, 20, 33), 128)  # what a later step must not see
    step = stage(buffers, batch, num_rows)
    count = batch.num_tokens
    assert step is buffers.view(num_rows)
    assert step.most_keys == 512
    assert step.ids_T.tolist() == batch.ids_M.tolist() + [0] * (num_rows - count)
    assert step.positions_T[:count].tolist() == batch.positions_M.tolist()
    assert step.slots_T[:count].tolist() == batch.write_slots_M.tolist()
    assert {slot // BLOCK_LEN for slot in step.slots_T[count:].tolist()} == {batch.store.trash_block}
    assert set(step.row_segments_T[count:].tolist()) == {-1}
    assert step.logit_rows_L[: len(batch.logit_rows_R)].tolist() == batch.logit_rows_R.tolist()
    assert step.lengths_B.tolist() == batch.prefix_lens.tolist() + [0] * (num_rows - 3)
    assert step.first_rows_B.tolist() == batch.offsets.tolist() + [count] * (num_rows - 3)
    for row in range(count):
        segment, seen = sees(step, row)
        first, last = batch.tree_offsets[segment], batch.tree_offsets[segment + 1]
        node = int(batch.num_written[segment]) + row - int(batch.offsets[segment])
        assert seen == set(path_to(node, batch.parents_P[first:last]).tolist()), (row, node)
        assert step.tree_positions_P[first:last].tolist() == batch.positions_P[first:last].tolist()
        start = step.table_offsets_B[segment]
        blocks = batch.blocks(segment)
        assert step.blocks_C[start : start + len(blocks)].tolist() == blocks.tolist()


def test_tokens_are_turned_by_positions_of_their_own() -> None:
    """Of a sequence with pictures: where these are in the step, by the first of three."""
    store, (first, second) = store_with(20, 20)
    of_pictures = np.array([[*range(18), 18, 18, 18, 18], [*range(18), 18, 18, 19, 19], [*range(18), 18, 19, 18, 19]])
    rotary = RotaryPositions(of_pictures.astype(np.int64), -2)
    tree = np.array([-1, 0, 0, 1], np.int32)
    plain = Segment(first, ints(1, 2, 3))
    batch = pack([plain, Segment(second, ints(5, 6, 7, 8), rotary=rotary)], store)
    assert batch.rotary_positions.tolist() == [
        [20, 21, 22, 18, 18, 20, 21],
        [20, 21, 22, 19, 19, 20, 21],
        [20, 21, 22, 18, 19, 20, 21],
    ]
    assert stage(StepBuffers(store, ROOM), batch, 8).rotary_T.tolist() == [20, 21, 22, 18, 18, 20, 21, 0]
    second.length = 24
    batch = pack([plain, Segment(second, ints(5, 6, 7, 8), tree, rotary=rotary)], store)
    step = stage(StepBuffers(store, ROOM), batch, 8)
    assert step.rotary_T.tolist() == [20, 21, 22, 22, 23, 23, 24, 0]
    assert step.positions_T.tolist() == [20, 21, 22, 24, 25, 25, 26, 0]


def test_a_trunk_is_what_all_later_rows_descend_from() -> None:
    step = stage(StepBuffers(batch_of(65, 40, 1).store, ROOM), batch_of(65, 40, 1), 128)
    trunk = int(step.trunk_lens_B[0])
    assert trunk >= 41
    first = torch.arange(trunk)
    assert torch.equal(step.enters_P[:trunk], first.int())
    assert set(step.leaves_P[:trunk].tolist()) == {105}
    grown = batch_of(65, 0, 70, roots=3)
    assert stage(StepBuffers(grown.store, ROOM), grown, 96).trunk_lens_B[1] == 0


def test_what_a_backend_shares_out_comes_with_the_step() -> None:
    batch = batch_of(30, 12, 40)
    buffers = StepBuffers(batch.store, ROOM)
    addresses = {(id(step), step.work_W.data_ptr()) for step in (stage(buffers, batch, 64), stage(buffers, batch, 64))}
    assert len(addresses) == 1
    assert buffers.view(64).work_W[:3].tolist() == [0, 1, 2]
    assert all(getattr(buffers.view(64), name).data_ptr() % 16 == 0 for name in ("ids_T", "blocks_C", "work_W"))


def test_logits_are_computed_of_no_more_tokens_than_there_is_room_for() -> None:
    batch = batch_of(30, 12, 40)
    step = stage(StepBuffers(batch.store, ROOM._replace(logits=60)), batch, 96)
    assert (len(step.ids_T), len(step.logit_rows_L), step.num_partials) == (96, 60, 4)
    assert step.logit_rows_L[: len(batch.logit_rows_R)].tolist() == batch.logit_rows_R.tolist()


def test_a_room_says_what_fits() -> None:
    batch = batch_of(65, 40, 1)
    work = work_of(batch)
    assert ROOM.holds(batch, work)
    needed = room_of(batch, work)
    assert needed.holds(batch, work)
    for name in ("rows", "logits", "tree_rows", "blocks", "keys"):
        assert not needed._replace(**{name: getattr(needed, name) - 1}).holds(batch, work)
    for less in (WorkRoom(2, 4), WorkRoom(3, 3)):
        assert not needed._replace(work=less).holds(batch, work)


def test_tokens_that_the_device_drew_are_read_there() -> None:
    store, sequences = store_with(20, 3, 0)
    batch = pack([Segment(rows, ints(9), ints(-1)) for rows in sequences], store)
    buffers = StepBuffers(store, ROOM)
    drawn_B = torch.tensor([50, 51, 52], dtype=torch.int32)
    places, added = np.array([2, 0]), ints(-1, -1)
    step = stage(buffers, following(batch, places, added, drawn_B), 4)
    assert step.ids_T.tolist() == [52, 50, 0, 0]
    assert step.positions_T.tolist() == [1, 21, 0, 0]
