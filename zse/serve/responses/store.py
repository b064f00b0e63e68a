"""Responses that are kept, so that a conversation can go on where it was: bounded, and private.

In memory: a restart forgets them. Whose take the most room lose theirs first, those that were not
used for longest before the others.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zse.errors import OverloadedError
from zse.serve.http.errors import UnknownIdError
from zse.serve.preparing import num_characters

if TYPE_CHECKING:
    from zse.serve.responses.items import Item
    from zse.serve.responses.run import ResponseRun
    from zse.serve.state import AppState

MAX_STORED_CHARACTERS = 64 << 20


@dataclass
class StoredResponse:
    """A response and what it was made of."""

    response: dict[str, Any]
    """As the client gets it."""
    input_items: list[Item]
    input_size: int = 0
    """Characters of what the client sent."""
    run: ResponseRun | None = None
    """What makes it in the background, and for a while what has made it."""
    size: int = 0
    """Characters of all of it, when it was last put."""

    @property
    def id(self) -> str:
        identifier: str = self.response["id"]
        return identifier

    def forget_run(self) -> None:
        """Let go of what made it, and of the events that were kept."""
        self.run = None

    def items(self) -> list[Item]:
        """Return what was said in it: by the client, then by the model."""
        return [*self.input_items, *self.response["output"]]


@dataclass
class _TenantResponses:
    """What one caller has."""

    stored: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    items: dict[str, Item] = field(default_factory=dict)
    """What its responses hold, by id."""
    size: int = 0


class ResponseStore:
    """Every response that is kept, by its caller and its id."""

    def __init__(self, state: AppState) -> None:
        self._most = state.options.stored_responses
        self._most_logs = state.options.resumable_streams
        self._max_size = MAX_STORED_CHARACTERS
        self._of_tenants: dict[str, _TenantResponses] = {}

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return self._most > 0

    def refuse_events(self) -> None:
        """Refuse to keep the events of another response where those of many are kept.

        Raises:
            OverloadedError: As many are kept as streams can be resumed.
        """
        runs = [each.run for kept in self._of_tenants.values() for each in kept.stored.values()]
        if sum(run is not None and run.log is not None for run in runs) >= self._most_logs:
            raise OverloadedError(
                f"This server keeps the events of {self._most_logs} responses in the background. "
                "Ask without 'stream', or later."
            )

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Keep a response, or what has become of it, at the cost of others where there is no room.

        One that is larger than all room is not kept.
        """
        self.drop(tenant, stored.id)
        stored.size = stored.input_size + num_characters(stored.response["output"])
        if stored.size > self._max_size or not self.keeps:
            return
        kept = self._of_tenants.setdefault(tenant, _TenantResponses())
        kept.stored[stored.id] = stored
        kept.items.update((item["id"], item) for item in stored.items())
        kept.size += stored.size
        while self._is_full():
            self._evict()

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Return a caller's response.

        Raises:
            UnknownIdError: The caller has none with this id, or has it no longer.
        """
        kept = self._of_tenants.get(tenant)
        if kept is None or response_id not in kept.stored:
            raise UnknownIdError("response", response_id)
        kept.stored.move_to_end(response_id)
        return kept.stored[response_id]

    def drop(self, tenant: str, response_id: str) -> None:
        """Forget a response, if it is there."""
        kept = self._of_tenants.get(tenant)
        if kept is None or response_id not in kept.stored:
            return
        stored = kept.stored.pop(response_id)
        kept.size -= stored.size
        for item in stored.items():
            kept.items.pop(item["id"], None)
        if not kept.stored:
            del self._of_tenants[tenant]

    def chain(self, tenant: str, response_id: str) -> list[Item]:
        """Return the items of a response and of all those before it, the first one first.

        Raises:
            UnknownIdError: One of them is not there, or no longer.
        """
        found: list[StoredResponse] = []
        following: str | None = response_id
        while following is not None:
            found.append(self.get(tenant, following))
            following = found[-1].response["previous_response_id"]
        return [item for stored in reversed(found) for item in stored.items()]

    def item(self, tenant: str, item_id: str) -> Item:
        """Return an item of any of a caller's responses.

        Raises:
            UnknownIdError: None of them has it.
        """
        kept = self._of_tenants.get(tenant)
        if kept is None or item_id not in kept.items:
            raise UnknownIdError("item", item_id)
        return kept.items[item_id]

    def _is_full(self) -> bool:
        tenants = self._of_tenants.values()
        num_stored = sum(len(kept.stored) for kept in tenants)
        size = sum(kept.size for kept in tenants)
        return num_stored > self._most or size > self._max_size

    def _evict(self) -> None:
        tenant, kept = max(self._of_tenants.items(), key=lambda each: each[1].size)
        self.drop(tenant, next(iter(kept.stored)))
