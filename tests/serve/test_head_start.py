"""The model is opened beside the imports; what goes wrong is said where it is taken."""

import pytest

from zse.errors import DeviceError, NotFoundError
from zse.options import ServeOptions, load_options
from zse.quantize.builtin import ensure_zse
from zse.serve.head_start import HeadStart


def test_the_model_is_opened_and_taken_once(tmp_path):
    model = ensure_zse("tiny", cache_dir=tmp_path)
    head_start = HeadStart(ServeOptions(model=str(model), load=load_options(device="cpu")))
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
        HeadStart(options).take()
