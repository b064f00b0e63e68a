"""The model is opened beside the imports; what goes wrong is said where it is taken."""

import pytest

from zse.errors import DeviceError, NotFoundError
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.serve.head_start import HeadStart
from zse.server_options import ServeOptions
from zse.settings import Settings


def test_the_model_is_opened_and_taken_once(tmp_path):
    model = locate_model("tiny", Settings(cache_dir=tmp_path))
    head_start = HeadStart(
        Settings(serve=ServeOptions(model=str(model), load=load_options(device="cpu")))
    )
    opened = head_start.take()
    assert opened.reader.header.architecture
    assert opened.arrival is None
    with pytest.raises(RuntimeError, match="taken once"):
        head_start.take()
    opened.abandon()


@pytest.mark.parametrize(
    ("model", "device", "error"),
    [("/no/such.zse", "cpu", NotFoundError), ("tiny", "gpu", DeviceError)],
)
def test_an_error_is_raised_to_who_takes_the_model(model, device, error):
    options = ServeOptions(model=model, load=load_options(device=device))
    with pytest.raises(error):
        HeadStart(Settings(serve=options)).take()
