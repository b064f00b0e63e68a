"""What a CPU is told of latent attention."""

from __future__ import annotations

import pytest
from family_shapes import shape_of

from zse.backends.cpu.latent import latent_of
from zse.backends.handles import LatentWeights
from zse.errors import UnsupportedModelError
from zse.kernels.native.codes import Scheme
from zse.kernels.native.structs import Matrix, Norm
from zse.models.families import read_checkpoint

MIXER = (
    read_checkpoint(shape_of("deepseek_v2", architectures=["DeepseekV2ForCausalLM"]))
    .layers[0]
    .mixer
)


def weights_of(scheme: Scheme) -> LatentWeights:
    return LatentWeights(query_norm=None, query=None, norm=Norm(), expansion=Matrix(scheme=scheme))


def test_queries_stand_before_what_is_kept() -> None:
    latent = latent_of(MIXER, weights_of(Scheme.BF16))
    assert (latent.rank, latent.key_dim, latent.value_dim) == (40, 24, 20)
    assert latent.query_columns == 4 * (24 + 16)


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.INT4])
def test_a_quantized_matrix_of_keys_and_values_is_refused(scheme: Scheme) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"kv_up.*stored as {scheme.name}"):
        latent_of(MIXER, weights_of(scheme))
