"""What a planner knows of machines and of the wires between them, and the file that says it.

Figures are measured (``zse.mesh.probe``) or written down by hand; the planner does not ask which.
"""

from __future__ import annotations

import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import MeshFileError
from zse.records import record
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_NODES = 12
"""The planner is exact: it looks at every subset of nodes, and doubles its work with each."""


@record
class NodeFacts:
    """One machine."""

    name: str
    memory_bytes: int
    """That weights and keys and values may take, of each device."""
    bytes_per_second: float
    """At which a step reads weights, of each device."""
    overhead_seconds: float = 0.0002
    """Of a step besides its layers: the call, the frame."""
    row_seconds: float = 0.0
    """A layer takes so much longer for each further row of a step."""
    devices: int = 1
    """GPUs of this host that can share each layer (tensor parallel)."""
    all_reduce_seconds: float = 2e-5
    """Of one layer, where several devices share it."""
    shares: tuple[int, ...] = ()
    """How many of the devices may share a layer; empty: each number that divides theirs."""

    @property
    def possible_shares(self) -> tuple[int, ...]:
        counts = range(1, self.devices + 1)
        return self.shares or tuple(count for count in counts if self.devices % count == 0)


@record
class LinkFacts:
    """The way from one machine to another."""

    bytes_per_second: float = 125e6
    seconds: float = 0.0005
    """One way, of a small message."""


@record
class MeshFacts:
    """All machines, and the ways between them."""

    nodes: tuple[NodeFacts, ...]
    links: Mapping[tuple[int, int], LinkFacts] = field(default_factory=dict)
    """By the numbers of both nodes, one direction each."""
    usual: LinkFacts = LinkFacts()
    """Of pairs that nothing is said about."""

    def link(self, source: int, target: int) -> LinkFacts:
        return self.links.get((source, target), self.usual)


def read_mesh(path: str | Path) -> MeshFacts:
    """Read a file of nodes and links, as ``docs/guides/mesh.md`` describes it.

    Raises:
        MeshFileError: It is missing, no JSON, or says something that no mesh can be.
    """
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise MeshFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MeshFileError(f"{path} is no JSON: {error}") from error
    return mesh_of(found)


def mesh_of(found: Any) -> MeshFacts:
    """Return what a parsed file says.

    Raises:
        MeshFileError: A field is missing, unknown or out of its range.
    """
    if not isinstance(found, dict) or not isinstance(found.get("nodes"), list):
        raise MeshFileError('a file of nodes is an object with a list "nodes"')
    nodes = tuple(_node(one) for one in found["nodes"])
    names = [node.name for node in nodes]
    if not 1 <= len(nodes) <= _MOST_NODES or len(set(names)) < len(names):
        raise MeshFileError(
            f"{len(nodes)} nodes named {', '.join(names) or 'nothing'}; "
            f"expected 1 to {_MOST_NODES} of different names"
        )
    links: dict[tuple[int, int], LinkFacts] = {}
    for one in _list(found, "links"):
        ends = [_text(one, key) for key in ("from", "to")]
        for end in ends:
            if end not in names:
                raise MeshFileError(f"a link names {end!r}; the nodes are {', '.join(names)}")
        source, target = map(names.index, ends)
        links[source, target] = _link(one)
        links.setdefault((target, source), links[source, target])
    return MeshFacts(nodes=nodes, links=links, usual=_link(found.get("link", {})))


def _node(found: Any) -> NodeFacts:
    name = _text(found, "name")
    usual = {"overhead_us": 200.0, "row_us": 0.0, "devices": 1, "all_reduce_us": 20.0}
    known = {"name", "memory_gib", "gb_per_s", *usual}
    if unknown := sorted(set(found) - known):
        raise MeshFileError(f"node {name!r} has unknown fields: {', '.join(unknown)}")
    devices = _number(found, "devices", 1, least=1)
    return NodeFacts(
        name=name,
        memory_bytes=int(_number(found, "memory_gib") * GIB),
        bytes_per_second=_number(found, "gb_per_s", above=True) * 1e9,
        overhead_seconds=_number(found, "overhead_us", usual["overhead_us"]) / 1e6,
        row_seconds=_number(found, "row_us", usual["row_us"]) / 1e6,
        devices=int(devices),
        all_reduce_seconds=_number(found, "all_reduce_us", usual["all_reduce_us"]) / 1e6,
    )


def _link(found: Any) -> LinkFacts:
    if not isinstance(found, dict):
        raise MeshFileError(f"a link is an object, not {found!r}")
    usual = LinkFacts()
    rate = _number(found, "mbit_per_s", usual.bytes_per_second * 8 / 1e6, above=True)
    return LinkFacts(
        bytes_per_second=rate * 1e6 / 8, seconds=_number(found, "ms", usual.seconds * 1e3) / 1e3
    )


def _list(found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = found.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MeshFileError(f"{key!r} is no list of objects")
    return value


def _text(found: Any, key: str) -> str:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, str) or not value:
        raise MeshFileError(f"{key!r} is {value!r}; expected a text")
    return value


def _number(
    found: dict[str, Any],
    key: str,
    usual: float | None = None,
    *,
    least: float = 0,
    above: bool = False,
) -> float:
    value = found.get(key, usual)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_low = value <= least if above else value < least
        if not is_low and value < 1e18:
            return float(value)
    wanted = f"a number {'above' if above else 'of at least'} {least:g}"
    raise MeshFileError(f"{key!r} is {value!r}; expected {wanted}")
