"""What ``--lora`` names is looked at before the model's weights are there."""

import pytest
from any_layers import attention, layer, model

from zse.errors import NotFoundError, UsageError
from zse.options import load_options
from zse.serve.adapters import read_for_start
from zse.server_options import ServeOptions

SPEC = model([layer(0, attention)])


def options(*loras, device="cpu"):
    return ServeOptions(loras=loras, load=load_options(device=device))


@pytest.mark.parametrize("name", ["m", "default"])
def test_an_adapter_is_not_called_as_the_model_is(name):
    with pytest.raises(UsageError, match="as the model is called"):
        read_for_start(options(f"{name}=/no/such"), "m", SPEC)


def test_a_folder_that_is_not_there_is_told():
    with pytest.raises(NotFoundError, match=r"/no/such/adapter_config\.json cannot be opened"):
        read_for_start(options("sql=/no/such"), "m", SPEC)
