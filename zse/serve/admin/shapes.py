"""What the bodies of FastAPI's routes have in common; their fields' docstrings are described."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """A body that is answered."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class AskedShape(BaseModel):
    """A body that is asked; a field that nobody knows is refused."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")
