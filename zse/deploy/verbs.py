"""The words that follow a target in place of a model."""

from __future__ import annotations

from enum import StrEnum


class Verb(StrEnum):
    """What can be done with something that was deployed."""

    STATUS = "status"
    LOGS = "logs"
    DESTROY = "destroy"
