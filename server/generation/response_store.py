"""Stores responses in memory, so that later ones can continue them and clients can read them again.

Each tenant may use `max_bytes`, and all together FULL_TENANTS times that. Responses are stored as JSON, so that the
bytes counted are the bytes held. Invariant: a tenant finds only its own.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from server.schemas.response_replies import Response
from server.schemas.responses import InputItem

FULL_TENANTS = 8  # how many full tenants the store has room for
ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
ITEM_BYTES = 128  # what a stored object takes beside its text


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """reply: as it was sent; items: the whole conversation up to and with this reply, each with an id of its own;
    num_said: how many of these are the reply's. All are JSON."""

    reply: bytes
    items: tuple[bytes, ...]
    num_said: int

    @classmethod
    def of(cls, reply: Response, earlier: tuple[bytes, ...]) -> StoredResponse:
        """earlier: the conversation before the reply, from `written_items`."""
        said = written_items([InputItem.model_validate(item) for item in reply["output"]])
        return cls(msgspec.json.encode(reply), earlier + said, len(said))

    @property
    def num_bytes(self) -> int:
        return len(self.reply) + sum(map(len, self.items)) + ITEM_BYTES * (len(self.items) + 1)

    def read_items(self) -> list[InputItem]:
        return [InputItem.model_validate_json(item) for item in self.items]

    def read_input(self) -> list[InputItem]:
        """The conversation without the reply."""
        return self.read_items()[: len(self.items) - self.num_said]


def written_items(items: Sequence[InputItem], earlier: Sequence[InputItem] = ()) -> tuple[bytes, ...]:
    """The items as they are stored, each with an id that neither another nor one of the `earlier` has."""
    taken = {item.id for item in earlier}
    written: list[bytes] = []
    for item in items:
        if not item.id or item.id in taken:
            item = item.model_copy(update={"id": f"{ID_PREFIXES[item.type]}_{uuid.uuid4().hex}"})
        taken.add(item.id)
        written.append(item.model_dump_json(exclude_none=True).encode())
    return tuple(written)


class ResponseStore:
    """max_bytes: for each tenant; 0 keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, OrderedDict[str, StoredResponse]] = {}  # by tenant, the least recently used first
        self._num_bytes: dict[str, int] = {}

    @property
    def keeps(self) -> bool:
        return self._max_bytes > 0

    def keep(self, tenant: str, response_id: str, response: StoredResponse) -> None:
        """Store a response, and drop the least recently used ones for it; one above `max_bytes` is not stored."""
        if response.num_bytes > self._max_bytes:
            return
        self._kept.setdefault(tenant, OrderedDict())[response_id] = response
        self._count(tenant, response.num_bytes)
        while self._num_bytes[tenant] > self._max_bytes:
            self._drop_oldest(tenant)
        while sum(self._num_bytes.values()) > FULL_TENANTS * self._max_bytes:
            self._drop_oldest(max(self._num_bytes, key=self._num_bytes.__getitem__))

    def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        kept = self._kept.get(tenant, OrderedDict())
        response = kept.get(response_id)
        if response is not None:
            kept.move_to_end(response_id)
        return response

    def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response; False where there was none."""
        response = self._kept.get(tenant, OrderedDict()).pop(response_id, None)
        if response is None:
            return False
        self._count(tenant, -response.num_bytes)
        return True

    def check_integrity(self) -> None:
        total = sum(self._num_bytes.values())
        for tenant, kept in self._kept.items():
            held = sum(response.num_bytes for response in kept.values())
            assert kept, tenant
            assert held == self._num_bytes[tenant] <= self._max_bytes, (tenant, held)
        assert set(self._kept) == set(self._num_bytes)
        assert total <= FULL_TENANTS * self._max_bytes

    def _drop_oldest(self, tenant: str) -> None:
        _, response = self._kept[tenant].popitem(last=False)
        self._count(tenant, -response.num_bytes)

    def _count(self, tenant: str, num_bytes: int) -> None:
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + num_bytes
        if not self._kept[tenant]:
            del self._kept[tenant], self._num_bytes[tenant]
