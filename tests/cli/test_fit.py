"""`zse fit`: copies of models on GPUs, and nothing downloaded."""

import json

import pytest

from zse.cli import run
from zse.device.known_gpus import KNOWN_GPUS

SEVEN, THIRTY_TWO = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-32B-Instruct"


def plan(capsys, *arguments, code=0):
    assert run(["fit", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_without_counts_each_gpu_is_told_how_many_it_holds(capsys):
    report = plan(capsys, SEVEN, THIRTY_TWO)
    sizes = {one["model"]: one["total_bytes"] for one in report["models"]}
    assert [gpu["gpu"] for gpu in report["gpus"]] == [gpu.name for gpu in KNOWN_GPUS]
    for gpu in report["gpus"]:
        for model, copies in gpu["copies"].items():
            assert copies * sizes[model] <= gpu["usable_bytes"] < (copies + 1) * sizes[model]


def test_a_mix_leaves_what_its_copies_do_not_take(capsys):
    report = plan(capsys, f"{SEVEN}=10", f"{THIRTY_TWO}=1", "--gpu", "a100 80gb")
    each = [one["total_bytes"] for one in report["models"]]
    assert report["needed_bytes"] == 10 * each[0] + each[1]
    (gpu,) = report["gpus"]
    assert gpu["gpu"] == "A100 80 GB"
    assert gpu["free_bytes"] == gpu["usable_bytes"] - report["needed_bytes"] > 0


def test_a_mix_that_no_gpu_holds_ends_with_one(capsys):
    report = plan(capsys, f"{SEVEN}=20", "--vram-gib", "80", code=1)
    assert report["gpus"][0]["free_bytes"] < 0
    assert run(["fit", f"{SEVEN}=20", "--vram-gib", "80"]) == 1
    assert "too little" in capsys.readouterr().out


def test_more_bits_and_longer_contexts_fit_less_often(capsys):
    def copies(*more):
        return plan(capsys, SEVEN, "--gpu", "H200", *more)["gpus"][0]["copies"][SEVEN]

    assert copies() > copies("--quant", "int8") > copies("--quant", "bf16")
    assert copies() > copies("--max-context", "32768")
    assert copies("--max-context", "32768", "--kv-dtype", "int8") > copies("--max-context", "32768")


def test_people_read_the_same(capsys):
    assert run(["fit", SEVEN, "--gpu", "H100"]) == 0
    out = capsys.readouterr().out
    assert "one copy takes" in out
    assert f"copies of {SEVEN}" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["Qwen/Qwen3-8"], 3, "Did you mean Qwen/Qwen3-8B"),
        ([SEVEN, "--gpu", "RTX 409"], 2, "Did you mean 'RTX 4090'"),
        ([SEVEN, "--gpu", "H100", "--vram-gib", "80"], 2, "exclude each other"),
        ([SEVEN, "--quant", "int5"], 2, "Schemes are"),
        ([f"{SEVEN}=0"], 2, "of 1 to 10000"),
        ([f"{SEVEN}=99999999999999999999"], 2, "of 1 to 10000"),
        ([f"{SEVEN}=2", THIRTY_TWO], 2, "others have not"),
        ([f"{SEVEN}=2x"], 3, "=2x"),
    ],
)
def test_what_cannot_be_planned_is_said(capsys, arguments, code, words):
    assert run(["fit", *arguments]) == code
    assert words in capsys.readouterr().err
