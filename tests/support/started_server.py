"""A server in a process of its own, told by its log where it listens."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

from zse.settings import subprocess_environment

ROOT = str(Path(__file__).parents[2])


class StartedServer:
    """Started and ready; ``stop`` ends it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=subprocess_environment(
                PYTHONPATH=os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
                ZSE_LOG_FORMAT="json",
                OMP_NUM_THREADS="1",
                **environment,
            ),
        )
        self.log: list[str] = []
        self.url = self._wait_until_ready()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _wait_until_ready(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if line.startswith("{") and (facts := json.loads(line))["message"] == "ready":
                url: str = facts["url"]
                return url
        raise AssertionError("the server ended:\n" + "".join(self.log))

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self.log.extend(self._process.stderr)

    def stop(self) -> int:
        """Return the exit code."""
        self._process.terminate()
        code = self._process.wait(60)
        self._reader.join(60)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code
