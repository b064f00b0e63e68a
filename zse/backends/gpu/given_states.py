"""States that come with a step's tokens, and those that its tokens leave, on a GPU.

Both pass through the host, which keeps them with their sequences: who guesses by them is another
backend, whose steps are other ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.transfers import DeviceRows
from zse.errors import EngineError
from zse.kernels.join.launch import JoinNorms
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.step import StepPlan
    from zse.backends.gpu.transfers import StagingRing
    from zse.backends.gpu.weights import BoundLinear, DeviceWeights
    from zse.device.gpu import Stream
    from zse.models.spec import JoinSpec


@record
class BoundJoin:
    """How embeddings of tokens are joined with the states that come with them."""

    norms: JoinNorms
    linear: BoundLinear


def bind_join(spec: JoinSpec, weights: DeviceWeights) -> BoundJoin:
    embedding, state = weights.norm(spec.embedding_norm), weights.norm(spec.state_norm)
    return BoundJoin(
        norms=JoinNorms(
            embedding=embedding.weight,
            embedding_epsilon=embedding.epsilon,
            state=state.weight,
            state_epsilon=state.epsilon,
        ),
        linear=weights.linear(spec.linear),
    )


def send_given(
    plan: StepPlan, address: int, hidden: int, staging: StagingRing, stream: Stream
) -> None:
    """Send the states that the tokens of a step came with, in the order of its rows.

    Raises:
        EngineError: A chunk brings none, or not as many as tokens.
    """
    row_bytes = 4 * hidden
    length = row_bytes * plan.num_rows
    view = staging.acquire(length).view
    end = 0
    for chunk in plan.chunks_in_order():
        first, end = end, end + row_bytes * len(chunk.token_ids)
        given = chunk.joined
        if given is None or len(given) != end - first:
            raise EngineError(
                f"{len(chunk.token_ids)} tokens came with {len(given or b'')} bytes of states; "
                f"{row_bytes} are needed for each"
            )
        view[first:end] = given
    staging.send(address, length, stream)


def sampled_by(plan: StepPlan, step: Step, hidden: int) -> DeviceRows | None:
    """Return where the head's inputs lie after a pass, if they are asked for."""
    if not plan.wants_hidden:
        return None
    plain = step.scratch.plain(step.shape.wanted, hidden)
    return DeviceRows(address=plain.values, rows=plain.rows, columns=plain.columns)


def left_by(plan: StepPlan, address: int, hidden: int) -> DeviceRows | None:
    """Return where a step leaves the states of its tokens; None where no chunk wants them."""
    if all(chunk.states_to is None for chunk in plan.batch.chunks):
        return None
    return DeviceRows(address=address, rows=plan.num_rows, columns=hidden)
