"""CUDA graphs: what was put into a stream once, replayed by one call.

Capture runs in the relaxed mode: other threads may allocate memory meanwhile. What a captured
kernel needs, its code above all, is loaded before the capture begins.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Self

from zse.device.cuda.errors import CudaRule
from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from zse.device.cuda.resource import Owner
    from zse.device.gpu import Stream

_CAPTURE_RELAXED = 2


class GraphExec(Resource):
    """A graph ready to run; what was captured may be destroyed."""

    noun = "a graph"
    taken_back_by = "cuGraphExecDestroy"

    def __init__(self, owner: Owner, graph: Graph) -> None:
        instantiate = "cuGraphInstantiateWithFlags"
        super().__init__(owner, owner.driver.read(ctypes.c_void_p, instantiate, graph.handle, 0))
        self._launch = owner.driver.raw("cuGraphLaunch")

    def launch(self, stream: Stream) -> None:
        code = self._launch(self.handle, stream.handle)
        if code:
            self._driver.fail("cuGraphLaunch", code)

    def upload(self, stream: Stream) -> None:
        self._driver.call("cuGraphUpload", self.handle, stream.handle)


class Graph(Resource):
    """What was captured: a description, not yet able to run."""

    noun = "a captured graph"
    taken_back_by = "cuGraphDestroy"

    @property
    def num_nodes(self) -> int:
        count = ctypes.c_size_t()
        self._driver.call("cuGraphGetNodes", self.handle, None, ctypes.byref(count))
        return count.value

    def instantiate(self) -> GraphExec:
        return GraphExec(self._owner, self)


class Capture:
    """Records a stream while the ``with`` block runs; nothing of it is executed."""

    def __init__(self, owner: Owner, stream: Stream) -> None:
        self._owner = owner
        self._stream = stream
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise CudaRule.CAPTURE("the graph is there only after its capture has ended")
        return self._graph

    def __enter__(self) -> Self:
        self._owner.driver.call("cuStreamBeginCapture_v2", self._stream.handle, _CAPTURE_RELAXED)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        driver = self._owner.driver
        handle = ctypes.c_void_p()
        code = driver.raw("cuStreamEndCapture")(self._stream.handle, ctypes.byref(handle))
        graph = Graph(self._owner, handle.value) if handle.value else None
        if kind is not None:
            # The stream had to be taken out of capture; the body's own error is what counts.
            if graph is not None:
                graph.destroy()
            return
        if code:
            driver.fail("cuStreamEndCapture", code)
        if graph is None:
            raise CudaRule.CAPTURE("the driver returned no graph for a capture")
        self._graph = graph
