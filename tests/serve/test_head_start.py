"""The model is opened beside the imports; what goes wrong is said where it is taken."""

import pytest

from zse.errors import NotFoundError, UsageError
from zse.quantize.builtin import ensure_zse
from zse.serve.head_start import HeadStart
from zse.serve.options import ServeOptions


def test_the_model_is_opened_and_taken_once(tmp_path):
    model = ensure_zse("tiny", cache_dir=tmp_path)
    head_start = HeadStart(ServeOptions(model=str(model), device="cpu"))
    opened = head_start.take()
    assert opened.reader.header.architecture
    assert opened.arrival is None
    with pytest.raises(RuntimeError, match="taken once"):
        head_start.take()
    opened.abandon()


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"model": "/no/such.zse"}, NotFoundError), ({"kv_dtype": "int3"}, UsageError)],
)
def test_an_error_is_raised_to_who_takes_the_model(changes, error):
    options = ServeOptions(**{"model": "tiny", "device": "cpu", **changes})
    with pytest.raises(error):
        HeadStart(options).take()
