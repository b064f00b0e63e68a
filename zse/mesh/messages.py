"""What machines of a mesh say to each other, as typed records; what does not fit them is refused.

Everything here is decoded from bytes of the network. Numbers are checked against the model and its
blocks where they are used (``check_batch``), before anything is computed with them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from zse.errors import MeshError

Message = TypeVar("Message")


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A stage on a node."""

    first_layer: int
    end_layer: int
    node: str
    address: str

    @property
    def layers(self) -> tuple[int, int]:
        return self.first_layer, self.end_layer


class StepHead(msgspec.Struct, array_like=True):
    """Of a frame of rows."""

    stage: int
    """Place in the chain of the stage that it goes to."""
    answered: int
    """Steps up to this one have been answered."""
    settled: list[int]
    """For each stage, up to which step its standby has what it needs, or it itself without one."""
    batch: msgspec.Raw
    """A ``WireBatch``: only who computes it reads it."""


class BlocksHead(msgspec.Struct, array_like=True):
    """Of a frame of keys and values."""

    first_layer: int
    end_layer: int
    blocks: bytes
    """i32, in the order in which they lie in the body."""
    number: int
    """0 for the first after an order, then one more each: a gap voids what a standby has."""
    is_first: bool
    """Whether a standby begins anew with it: all before it is void."""
    is_last: bool
    """Whether the step of the frame is settled with it."""


class StageState(msgspec.Struct, array_like=True):
    """How far a stage of a node is."""

    first_layer: int
    end_layer: int
    is_primary: bool
    done: int
    """The last step that it computed, or as a standby what it has is of."""
    step_microseconds: int = 0
    """Of its steps, lately."""
    log_base: int = 0
    """As the one that computes: all steps behind this one that it computed can be sent again."""
    missing: int = 0
    """The step that it would have to compute next, where only later ones have come; 0: none."""
    num_fed: int = 0
    """As a standby: frames of blocks that came since it was last fed anew."""


class NodeState(msgspec.Struct, array_like=True):
    """What a node says of itself with every beat."""

    epoch: int = 0
    stages: list[StageState] = []
    silent: list[str] = []
    """Nodes that it sends to and has not heard of for a while."""
    computing: int = 0
    """The step that it computes just now; 0: none."""
    sending: list[str] = []
    """Of ``rows`` and ``blocks`` what is on its way from it, with bytes that arrived lately."""
    late_milliseconds: int = 0
    """By which its process ran late lately: its machine has more to do than processors."""
    problem: str = ""
    """Why it leaves its front end just now."""


class Ask(msgspec.Struct, tag_field="ask", omit_defaults=True):
    """Base of what a front asks; each has an answer of the same number."""


class AskFacts(Ask, tag="facts"):
    """What this node has; answered with ``Facts``."""


class Facts(msgspec.Struct):
    """Of a node."""

    name: str
    memory_bytes: int
    """That a mesh may have of each device."""
    bytes_per_second: float
    """At which each device reads weights."""
    cores: int
    version: str
    device: str
    shares: tuple[int, ...] = (1,)
    """How many of its devices may share each layer."""
    sums_seconds: float = 0.0
    """That a layer takes longer for it."""


class AskLook(Ask, tag="look"):
    """Whether another node can be reached from here, and how fast the way is."""

    address: str
    seconds: float
    probe_bytes: int = 0


class Look(msgspec.Struct):
    is_there: bool
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    error: str = ""


class AskOpen(Ask, tag="open"):
    """Open a stage, as a standby: an order makes it the one that computes."""

    model: str
    digest: str
    """SHA-256 of the header of the file, which has those of all its parts."""
    first_layer: int
    end_layer: int
    options: dict[str, Any]
    """What decides bits and blocks: the fields of ``zse.options.LoadFields``."""
    kind: str = ""
    """Of who computes the stage that it is to stand by for; empty: it is the first."""
    devices: int = 1
    """That share each of the layers."""

    @property
    def layers(self) -> tuple[int, int]:
        return self.first_layer, self.end_layer


class AskClose(Ask, tag="close"):
    first_layer: int
    end_layer: int


class Order(Ask, tag="order"):
    """Who computes what from now on. Older orders are void, and so are frames of their epochs."""

    epoch: int
    chain: list[Place]
    codecs: list[int]
    """The form of rows on their way to each stage."""
    standbys: list[Place]
    answered: int
    settled: list[int]


class Done(msgspec.Struct):
    """Answers what has no other answer; or says what went wrong with anything."""

    error: str = ""
    hint: str = ""
    seconds: float = 0.0
    weight_bytes: int = 0
    kind: str = ""
    """Of the stage that was opened: how its blocks lie, and what computes them."""


AnyAsk = AskFacts | AskLook | AskOpen | AskClose | Order
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Any) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes | memoryview, kind: type[Message]) -> Message:
    """Return a message.

    Raises:
        MeshError: The bytes are none of this kind.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise MeshError(f"a message of a peer cannot be read: {error}") from None


def decode_ask(data: bytes | memoryview) -> AnyAsk:
    """Return what a front asks; fails as ``decode``."""
    try:
        found: AnyAsk = msgspec.msgpack.decode(data, type=AnyAsk)
    except msgspec.MsgspecError as error:
        raise MeshError(f"a front asks what is not known: {error}") from None
    return found
