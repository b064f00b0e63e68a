"""What a model's file says of itself is believed only where it has a meaning."""

import json

import pytest

from zse.serve.load import sampling_defaults


class Sections:
    """A file with a generation_config.json and nothing else."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def has_section(self, name):
        return self.data is not None and name == "generation_config.json"

    def section(self, name):
        return memoryview(self.data)


def defaults_of(config):
    return sampling_defaults(Sections(json.dumps(config).encode()))


def test_sampling_defaults_are_the_models_own():
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1, 2]}
    assert defaults_of(config) == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert defaults_of({**config, "do_sample": False}) == {"temperature": 0.0}


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_p": 1.5},
        {"top_k": 50.5},
        {"top_k": True},
        {"repetition_penalty": 0},
        {"min_p": None},
    ],
)
def test_a_default_without_meaning_is_left_out_and_not_every_request_refused(values):
    assert defaults_of(values) == {}


@pytest.mark.parametrize("data", [None, b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_file_that_says_nothing_sensible_has_no_defaults(data):
    assert sampling_defaults(Sections(data)) == {}
