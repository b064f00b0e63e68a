"""A model on several machines, as an engine sees it: a runner that has several steps in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from zse.backends.types import MAX_DRAFTS, DeviceUsed, check_batch
from zse.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.types import Answers, LogitRows, StepBatch
    from zse.kv.windows import WindowGroup
    from zse.mesh.flight import MeshStep
    from zse.mesh.front import Front
    from zse.models.spec import ModelSpec


class MeshRunner:
    """What ``zse.models.runner.ModelRunner`` is for one machine.

    Args:
        front: At work.
        spec: The whole model.
        num_blocks: Of every stage's pool.
        block_size: Tokens of a block.
        max_position: Longest sequence in tokens.
        on_close: Called when the runner is closed.
    """

    looks_ahead = False
    is_encoder = False
    windows: Sequence[WindowGroup] = ()
    num_checkpoints: int | None = None
    most_drafts = MAX_DRAFTS
    most_sequences: int | None = None

    def __init__(
        self,
        front: Front,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        max_position: int,
        on_close: Callable[[], None],
    ) -> None:
        self.front = front
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_position = max_position
        self._on_close = on_close

    @property
    def steps_in_flight(self) -> int:
        """Steps that there should be at once, so that no stage waits: one more than stages."""
        return max(2, len(self.front.duties) + 1)

    @property
    def device(self) -> DeviceUsed:
        count = len({duty.node for duty in self.front.duties})
        return DeviceUsed(name="mesh", hardware=f"{count} nodes", instructions="cpu")

    def submit(self, batch: StepBatch) -> MeshStep:
        """Send a step on its way; fails as ``ModelRunner.submit``."""
        check_batch(
            batch,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            vocab_size=self.vocab_size,
        )
        return self.front.submit(batch)

    def execute(self, batch: StepBatch) -> Answers:
        return self.submit(batch).wait()

    def bind_adapter(self, _adapter: object) -> NoReturn:
        """Refuse adapters.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError(
            "a model on several machines takes no LoRA adapters",
            hint="Merge it (zse convert MODEL --merge-lora FOLDER), or serve on one machine.",
        )

    def logits(self, *_: object, **__: object) -> LogitRows:
        """Refuse what is computed outside of steps.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError("logits of whole texts are not computed on several machines")

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Keep what nodes hold: their standbys have it, too."""

    def memory_bytes(self) -> dict[str, int]:
        return {}

    def describe(self) -> dict[str, Any]:
        return self.front.describe()

    def close(self) -> None:
        self.front.close()
        self._on_close()
