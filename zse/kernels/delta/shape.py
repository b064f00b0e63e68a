"""The numbers of a linear attention, as every implementation understands them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from zse.models.layer_spec import LinearAttentionSpec


@record
class DeltaShape:
    """How many heads of which width.

    A sequence's state in one layer is what the convolution still looks back at and a matrix
    [key_dim, value_dim] for each value head, both float32.
    """

    num_key_heads: int
    num_value_heads: int
    """A multiple of ``num_key_heads``: consecutive ones share a query and a key."""
    key_dim: int
    value_dim: int
    convolution_width: int

    @property
    def key_columns(self) -> int:
        """Columns of all queries, and of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_columns(self) -> int:
        """Columns of all values, of their gates and of the output."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Columns that are convolved: queries, keys and values."""
        return 2 * self.key_columns + self.value_columns

    @property
    def input_columns(self) -> int:
        """Columns of the joined projection: channels, then gates of the output."""
        return self.channels + self.value_columns

    @property
    def state_numbers(self) -> int:
        """Numbers of the matrices of all value heads."""
        return self.num_value_heads * self.key_dim * self.value_dim

    @property
    def ring_numbers(self) -> int:
        """Numbers of the last tokens that the convolution looks back at, the newest included."""
        return self.convolution_width * self.channels

    @classmethod
    def of(cls, spec: LinearAttentionSpec) -> DeltaShape:
        return cls(
            num_key_heads=spec.num_key_heads,
            num_value_heads=spec.num_value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            convolution_width=spec.convolution_width,
        )
