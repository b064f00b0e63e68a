"""One table of options; flags and keywords are made of it."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from zse.errors import UsageError
from zse.option import options_of, several, with_flags, with_values
from zse.options import UNROUNDED, LoadFields, LoadOptions, load_fields, load_options
from zse.server_options import ServeOptions


def test_the_keywords_of_a_load_are_its_options_with_their_types() -> None:
    def outer(row) -> str:  # the one flag that is called otherwise
        return "max_sequences" if row.key == "max_running" else row.key

    rows = {outer(row): row for row in options_of(LoadOptions).values()}
    hints = get_type_hints(LoadFields)
    assert rows.keys() == hints.keys()
    for name, row in rows.items():
        assert hints[name] == (row.kind if row.default is not None else row.kind | None), name


def test_options_by_name_find_their_place_in_the_records() -> None:
    options = load_options(device="cpu", kv_gib=1.5, max_sequences=3, quant="int8")
    assert options.device.name == "cpu"
    assert options.cache.kv_gib == 1.5
    assert options.batch.max_sequences == 3
    assert options.quant == "int8"


def test_a_flag_that_was_not_given_leaves_what_the_environment_said() -> None:
    said = ServeOptions(port=9000, load=load_options(threads=4))
    options = with_flags(said, {"port": None, "threads": 2, "max_running": 8})
    assert options.port == 9000
    assert options.load.device.threads == 2
    assert options.load.batch.max_sequences == 8


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kv_gib": float("inf")}, "kv_gib is inf, expected 0 or more"),
        ({"threads": 2000}, "threads is 2000, expected 0 to 1024"),
        ({"max_sequences": 0}, "max_sequences is 0, expected 1 or more"),
        (
            {"kv_dtype": "int3"},
            "kv_dtype is 'int3', expected one of auto, fp32, fp16, bf16, int8, int4",
        ),
    ],
)
def test_a_value_out_of_range_is_refused_under_the_name_it_was_given(values, words) -> None:
    with pytest.raises(UsageError, match=words):
        load_options(**values)


def test_gpus_without_ranks_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="--gpus 1 is given, and one device"):
        load_options(gpus="1")
    assert load_options(gpus="1,0", tensor_parallel=2).ranks.gpus == "1,0"


def test_products_of_eight_bits_are_refused_by_name_where_they_would_be_of_sixteen() -> None:
    with pytest.raises(UsageError, match="prefill-precision is 8, which --exact-activations"):
        load_options(prefill_precision="8", exact_activations=True)
    for precision in ("8", "16"):
        options = load_options(prefill_precision=precision, deterministic=True)
        assert options.device.prefill_precision == precision


def test_what_others_are_held_against_is_loaded_whatever_precision_was_asked_for() -> None:
    plain = with_values(load_options(prefill_precision="8", kv_dtype="int8"), UNROUNDED)
    assert plain.device.exact_activations
    assert (plain.device.prefill_precision, plain.cache.kv_dtype) == ("auto", "auto")


def test_a_level_may_be_written_in_capitals() -> None:
    assert ServeOptions(log_level="INFO").log_level == "INFO"


def test_load_fields_are_the_keywords_of_load_options() -> None:
    options = load_options(device="cpu", max_sequences=3, kv_dtype="int8", prefix_cache=False)
    assert load_options(**load_fields(options)) == options
    assert load_fields(options).keys() == LoadFields.__annotations__.keys()


def test_an_option_of_several_texts_takes_them_one_by_one_and_with_commas() -> None:
    options = with_flags(ServeOptions(), {"allowed_host": ["a.example", "b.example, c.example,"]})
    assert options.http.allowed_hosts == ("a.example", "b.example", "c.example")
    assert with_flags(options, {"allowed_host": []}) == options
    assert with_flags(options, {"allowed_host": None}) == options
    assert several(["a,b", " ", "c"]) == ("a", "b", "c")
