"""Calls of the sampling kernels on torch tensors: parameters in, tokens and kept sets out.

The tensors may lie on any device that the launcher runs on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from zse.kernels.layout import MAX_ALTERNATIVES, STATE_SIZE
from zse.kernels.lm_head_sample.arrays import (
    SampledArrays,
    SamplingArrays,
    SamplingKind,
)
from zse.kernels.lm_head_sample.entries import adjustment_entries
from zse.kernels.lm_head_sample.launch import sample
from zse.kernels.lm_head_sample.row import SamplingRow, uniform_single
from zse.kernels.lm_head_sample.variants import Tiles
from zse.kernels.lm_head_sample.workspace import workspace_at, workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.kernels.launcher import Launcher

SMALL = Tiles(block=256, slice=128, max_blocks=16, capacity=64, chunk=32)
UNTOUCHED = -7
GREEDY_PADDING = SamplingRow(temperature=0.0)


@dataclass(kw_only=True)
class Sampled:
    """Results of one call, on the CPU."""

    tokens: list[int]
    last_tokens: list[int]
    logprobs: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor
    logits: torch.Tensor
    kept: list[set[int]]
    """By row, what truncation left; meaningless unless truncation ran on a row with a temperature."""


class SamplingCall:
    """Logits and parameters of some rows, in memory that kernels can read."""

    def __init__(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        *,
        uniforms: Sequence[float] | None = None,
        slots: Sequence[int] | None = None,
        pending: Mapping[int, int] | None = None,
        masks: torch.Tensor | None = None,
    ) -> None:
        """Take logits [rows, vocab].

        ``pending`` has tokens that only the device knows, by row; ``masks`` is int32
        [masked rows, ceil(vocab / 32)].
        """
        self.device = logits.device
        self.num_rows, self.vocab = logits.shape
        assert len(rows) == self.num_rows
        self.logits = logits.clone()
        drawn = [uniform_single(row.seed, row.step) for row in rows]
        self.slots = list(range(self.num_rows)) if slots is None else list(slots)
        self.default_kind = SamplingKind.of(rows, self.vocab)
        self._parameters = {
            "temperature": self.floats([row.temperature for row in rows]),
            "top_k": self.integers([row.top_k for row in rows]),
            "top_p": self.floats([row.top_p for row in rows]),
            "min_p": self.floats([row.min_p for row in rows]),
            "uniform": self.floats(drawn if uniforms is None else uniforms),
            "slots": self.integers(self.slots),
        }
        order = iter(range(len(rows)))
        places = [next(order) if row.is_masked else -1 for row in rows]
        self._parameters["mask_row"] = self.integers(places)
        self._masks = self.integers([]) if masks is None else masks.to(self.device).contiguous()
        self._pending = pending or {}
        entries = adjustment_entries(rows, self._pending.keys())
        self.num_adjustments = len(entries.rows)
        if self.num_adjustments:
            self._parameters |= {
                "entry_row": self.integers(entries.rows),
                "entry_token": self.integers(entries.tokens),
                "entry_penalty": self.floats(entries.penalties),
                "entry_add": self.floats(entries.additions),
                "entry_seen": self.integers(entries.seen),
                "run_first": self.integers(entries.pending.first),
                "run_length": self.integers(entries.pending.length),
                "repetition": self.floats(entries.pending.repetition),
                "presence": self.floats(entries.pending.presence),
                "frequency": self.floats(entries.pending.frequency),
            }

    def floats(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=self.device)

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=self.device)

    def run(
        self, launcher: Launcher, *, kind: SamplingKind | None = None, tiles: Tiles = SMALL
    ) -> Sampled:
        self.prepare(tiles)
        self.launch(launcher, kind)
        return self.results()

    def prepare(self, tiles: Tiles) -> None:
        """Make room for results and for what the kernels tell each other."""
        rows, wide = self.num_rows, MAX_ALTERNATIVES
        self._tiles = tiles
        self._outputs = {
            "tokens": self.integers([UNTOUCHED] * rows),
            "last_tokens": self.integers(self._last_tokens()),
            "logprobs": self.floats([UNTOUCHED] * rows),
            "top_tokens": self.integers([UNTOUCHED] * rows * wide),
            "top_logprobs": self.floats([UNTOUCHED] * rows * wide),
        }
        # Junk, so that nothing can rely on what an earlier step left there.
        size = workspace_bytes(rows, self.vocab, tiles) // 4 + 4
        self._workspace = torch.full((size,), float("nan"), device=self.device)
        self._start_bytes = -self._workspace.data_ptr() % 16

    def _last_tokens(self) -> list[int]:
        tokens = [UNTOUCHED] * (max(self.slots) + 2)
        for row, token in self._pending.items():
            tokens[self.slots[row]] = token
        return tokens

    def launch(self, launcher: Launcher, kind: SamplingKind | None = None) -> None:
        sample(
            launcher,
            self.logits.data_ptr(),
            rows=self.num_rows,
            vocab=self.vocab,
            arrays=SamplingArrays(**{k: v.data_ptr() for k, v in self._parameters.items()}),
            kind=self.default_kind if kind is None else kind,
            workspace_address=self._workspace.data_ptr() + self._start_bytes,
            outputs=SampledArrays(**{k: v.data_ptr() for k, v in self._outputs.items()}),
            masks_address=self._masks.data_ptr(),
            num_adjustments=self.num_adjustments,
            tiles=self._tiles,
        )

    def tokens(self) -> list[int]:
        """Copy the tokens of the last launch alone."""
        found: list[int] = self._outputs["tokens"].tolist()
        return found

    def results(self) -> Sampled:
        """Copy what the last launch wrote; it waits for the device."""
        found = {name: values.cpu() for name, values in self._outputs.items()}
        rows, wide = self.num_rows, MAX_ALTERNATIVES
        return Sampled(
            tokens=found["tokens"].tolist(),
            last_tokens=found["last_tokens"].tolist(),
            logprobs=found["logprobs"],
            top_tokens=found["top_tokens"].view(rows, wide),
            top_logprobs=found["top_logprobs"].view(rows, wide),
            logits=self.logits.cpu(),
            kept=self._kept(self._workspace.cpu()[self._start_bytes // 4 :], self._tiles),
        )

    def _kept(self, workspace: torch.Tensor, tiles: Tiles) -> list[set[int]]:
        """Return each row's kept tokens from the cut that the kernels found."""
        places = workspace_at(0, self.num_rows, self.vocab, tiles)
        size = self.num_rows * STATE_SIZE

        def piece(offset_bytes: int) -> torch.Tensor:
            first = offset_bytes // 4
            return workspace[first : first + size].view(self.num_rows, STATE_SIZE)

        highs = piece(places.cut_values)[:, 1].tolist()
        cuts = piece(places.cut_counts).contiguous().view(torch.int32).tolist()
        searched = [
            0 < k < self.vocab or p < 1.0
            for k, p in zip(
                self._parameters["top_k"].tolist(),
                self._parameters["top_p"].tolist(),
                strict=True,
            )
        ]
        kept = []
        for logits, high, (_, _, key, ties), search in zip(
            self.logits.cpu(), highs, cuts, searched, strict=True
        ):
            found = set(torch.nonzero(logits >= high).flatten().tolist())
            if search:
                keys = ordered_keys(logits)
                found |= set(torch.nonzero(keys > key).flatten().tolist())
                found |= set(torch.nonzero(keys == key).flatten().tolist()[:ties])
            kept.append({token for token in found if logits[token] > float("-inf")})
        return kept


def ordered_keys(logits: torch.Tensor) -> torch.Tensor:
    """Return int32 keys in the order of float32 values, -0 as +0."""
    bits = torch.where(logits == 0.0, 0.0, logits).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
