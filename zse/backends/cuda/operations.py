"""The operations as kernel launches. They run eagerly and under stream capture alike.

Work is put off where that saves a kernel: a matrix leaves split sums that the next norm adds to the
residual stream on its way, attention and the gate wait until it is known in which form the next
matrix wants to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from zse.kernels.attention.launch import (
    attention_decode,
    attention_output_can_be_quantized,
    attention_prefill,
)
from zse.kernels.buffers import ACTIVATION_GROUP, Activation, Partials, Plain
from zse.kernels.embed.launch import embed
from zse.kernels.gate_up.launch import silu_mul
from zse.kernels.linear.launch import linear, linear_prefill
from zse.kernels.linear.plan import plan_linear, supports_quantized
from zse.kernels.lm_head_sample.launch import sample
from zse.kernels.norm.launch import residual_norm
from zse.kernels.rope_store.launch import rope_store

if TYPE_CHECKING:
    from zse.backends.cuda.model import DeviceModel
    from zse.backends.cuda.pass_ import CudaPass
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
