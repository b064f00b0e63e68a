"""One pass on its way through the layers: where its numbers are, and what is put off.

Work is put off where that saves a kernel. A matrix leaves split sums behind; the next norm adds
them to the residual stream on its way. Attention and the gate wait until it is known in which form
the next matrix reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.backends.gpu.inputs import InputShape, StepArrays
    from zse.backends.gpu.kv_pool import KVPool
    from zse.backends.gpu.scratch import Scratch
    from zse.backends.gpu.state_pool import StatePool
    from zse.backends.gpu.weights import BoundNorm
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Partials, Plain, Turned
    from zse.kernels.linear.closed import Begun
    from zse.kernels.lm_head_sample.arrays import SamplingKind
    from zse.kernels.norm.launch import PostNorm
    from zse.kernels.route.launch import Choice


Rounding: TypeAlias = Literal["none", "groups", "tokens"]
"""How what matrices read may be rounded to 8 bits: not at all, with a scale for each 128 columns of
few rows, or with one for each of many rows, turned."""


@record
class Step:
    """What the operations look up: addresses, sizes, and where their kernels go."""

    launcher: Launcher
    """Puts the kernels of this pass into a stream, or only remembers them."""
    shape: InputShape
    inputs: StepArrays
    """Addresses of the step's inputs."""
    scratch: Scratch
    cache: KVPool
    states: StatePool | None
    """None where sequences have none."""
    sampling: SamplingKind
    """Which sampling kernels the wanted rows need."""
    rounding: Rounding
    tells_states: bool = False
    """Whether the host is told what the head reads, in 16 bits."""
    norms_behind: Mapping[str, BoundNorm] = field(default_factory=dict)
    """Norms that products begin, by the name of the product's matrix."""

    @property
    def quantized(self) -> bool:
        """Whether matrices may read int8 activations of few rows."""
        return self.rounding == "groups"


@dataclass(kw_only=True)
class Residual:
    """The residual stream, float32 [rows, hidden], and what is still to be added to it."""

    address: int
    pending: Partials | None = None
    bias: int = 0
    """Address of what is added to the sums of ``pending``, or 0."""
    scale: float = 1.0
    """Multiplies these sums with their bias."""
    post: PostNorm | None = None
    """What is done to these sums first, and to the stream afterwards."""
    norm: BoundNorm | None = None
    """LayerNorm of the stream itself, after all that."""
    is_share: bool = False
    """Whether ``pending`` and ``bias`` are a rank's part of a sum over ranks."""
    begun: Begun | None = None
    """The norm of the stream that its reader takes, if the product before has begun it."""

    def take_pending(self) -> tuple[Partials | None, int, float, PostNorm | None]:
        """Return what is to be added, its bias, its factor and its norm; the caller adds it."""
        taken = self.pending, self.bias, self.scale, self.post
        self.pending, self.bias, self.scale, self.post = None, 0, 1.0, None
        self.is_share = False
        return taken

    def take_begun(self) -> Begun | None:
        """Return the norm that has been begun; the caller reads it."""
        taken, self.begun = self.begun, None
        return taken

    def take_norm(self) -> BoundNorm | None:
        """Return the norm of the stream itself; the caller takes it."""
        taken, self.norm = self.norm, None
        return taken


@record
class Told:
    """What layers are told of each row besides the stream, float32 [rows, columns]."""

    address: int
    columns: int
    """Of all layers together."""


@record
class Projected:
    """Queries, keys and values before their bias, norm and rotation."""

    sums: Partials
    bias: int
    """Address of float32 [columns], or 0."""


@record
class Query:
    """Queries of a layer; those of prefill rows are rotated already, those of decode rows not."""

    projected: Projected
    layer: int
    head_norms: tuple[BoundNorm, BoundNorm] | None
    """Of queries and keys."""


@record
class WideQueries:
    """Queries of all rows of a step, as wide as what is kept of a token where that is a latent."""

    address: int
    """Of bfloat16 [rows, heads, columns kept]; sums of latents take their place."""


@record
class Deferred:
    """Activations that are made when it is known how they will be read."""

    columns: int
    can_quantize: bool
    """Whether they can be made in int8."""
    write: Callable[[Activation], None] = field(repr=False)
    """Makes them."""
    write_turned: Callable[[Turned], None] | None = field(default=None, repr=False)
    """Makes them turned; None where they are turned when they are there."""


@record
class Added:
    """What is added to the stream: summands, or products of experts that are to be summed."""

    sums: Partials | None = None
    """Weighted already."""
    pairs: Plain | None = None
    """bfloat16 [rows * slots, hidden], by the weights of ``choice``."""
    choice: Choice | None = None
    shared: Partials | None = None
    """What a shared expert of another form makes in place of the last slot's products."""
    sums_address: int = 0
    """Where the sums of ``pairs`` may lie, float32 [rows, hidden]."""
    is_whole: bool = False
    """Whether ``sums`` are made of what all ranks have, not of this one's part."""
