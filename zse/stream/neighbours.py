"""Processes of one group that find each other on a network, by Zenoh (extra ``mesh``).

Multicast tells them of each other within a tenth of a second, and a token of each holds its address
and says that it lives. Anybody on the network may write such a token: an address is no more than a
place where to ask for a proof.
"""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

from zse.errors import needing

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEASE_MILLISECONDS = 400
_ADDRESS = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}:[0-9]{1,5}")


class Neighbours:
    """Members of a group; told when one comes or its token goes.

    Args:
        group: Key of the group. Members of others have other keys.
        own: Name, of characters that a key may hold, and address of the member that is announced;
            None for who only looks.
        join: Addresses, HOST:PORT, of Zenoh peers where multicast does not reach.
        listen: Address that Zenoh listens at; empty: any.

    Raises:
        MissingDependencyError: Zenoh is not installed.
    """

    def __init__(
        self,
        group: str,
        own: tuple[str, str] | None = None,
        *,
        join: Iterable[str] = (),
        listen: str = "",
    ) -> None:
        with needing("mesh", "discovery of nodes"):
            import zenoh
        self._zenoh: Any = zenoh
        self._found: set[str] = set()
        self._changed = threading.Condition()
        self._session: Any = zenoh.open(self._config(list(join), listen))
        self._listener = self._session.liveliness().declare_subscriber(
            f"{group}/**", self._tell, history=True
        )
        self._token = None
        if own is not None:
            key = f"{group}/{own[0]}/{own[1].encode().hex()}"
            self._token = self._session.liveliness().declare_token(key)

    def addresses(self) -> list[str]:
        with self._changed:
            return sorted(self._found)

    def await_first(self, seconds: float) -> None:
        """Return when a member is known, or after so long."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._found), seconds)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _config(self, join: list[str], listen: str) -> Any:
        config = self._zenoh.Config()
        settings: dict[str, Any] = {
            "mode": "peer",
            "transport/link/tx/lease": _LEASE_MILLISECONDS,
            "transport/link/tx/keep_alive": 4,
            # Shared memory would let nodes of one host hear of each other past a cut wire.
            "transport/shared_memory/enabled": False,
            "scouting/multicast/enabled": not join and not listen,
        }
        if join:
            settings["connect/endpoints"] = [f"tcp/{address}" for address in join]
        if listen:
            settings["listen/endpoints"] = [f"tcp/{listen}"]
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        return config

    def _tell(self, sample: Any) -> None:
        address = _address_in(str(sample.key_expr))
        if not address:
            return
        is_there = sample.kind == self._zenoh.SampleKind.PUT
        with self._changed:
            (self._found.add if is_there else self._found.discard)(address)
            self._changed.notify_all()


def _address_in(key: str) -> str:
    """Return the address that a key holds; anybody may write one, so it may be none: empty."""
    try:
        address = bytes.fromhex(key.rpartition("/")[2]).decode("ascii")
    except ValueError:
        return ""
    return address if _ADDRESS.fullmatch(address) else ""
