"""The numbers of one layer's latent attention."""

from __future__ import annotations

from zse.records import record


@record
class LatentShape:
    """Widths; see ``zse.models.layer_spec.LatentSpec``."""

    num_heads: int
    rank: int
    """Columns of the latent."""
    turning: int
    """Columns of the key that turns, and of what turns in a query."""
    key_dim: int
    """Columns of a head's query that do not turn."""
    value_dim: int
    query_rank: int = 0
    """Columns of the queries' own latent; 0 for none."""

    @property
    def kept(self) -> int:
        """Columns that are kept of a token."""
        return self.rank + self.turning

    @property
    def query_columns(self) -> int:
        """Columns of all heads' queries as they are made."""
        return self.num_heads * (self.key_dim + self.turning)

    @property
    def own_columns(self) -> int:
        """Columns of the joined product before the latent: queries, or their latent."""
        return self.query_rank or self.query_columns

    @property
    def joined_columns(self) -> int:
        return self.own_columns + self.kept

    @property
    def wide_columns(self) -> int:
        """Columns of all heads' queries when they are as wide as what is kept."""
        return self.num_heads * self.kept

    @property
    def value_columns(self) -> int:
        return self.num_heads * self.value_dim
