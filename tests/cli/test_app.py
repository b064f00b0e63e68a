"""Words of a command line become values, or a sentence that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer import Argument, Option

from zse.cli import run
from zse.cli.app import App, command_of
from zse.cli.table_flags import with_flags_of

app = App()


@app.command()
def command(
    paths: Annotated[list[Path] | None, Argument()] = None,
    count: Annotated[int, Option(min=1, max=9)] = 3,
    share: Annotated[float | None, Option()] = None,
    scheme: Annotated[Literal["int4", "BF16"], Option()] = "int4",
    sizes: Annotated[list[int] | None, Option("--size")] = None,
) -> dict[str, Any]:
    return dict(locals())


@app.command()
@with_flags_of(["device", "exact_activations", "kv_dtype", "vram_gib"])
def flagged(*, given: dict[str, Any], name: str = "x") -> dict[str, Any]:
    return {"name": name, **given}


def called(*words: str) -> dict[str, Any]:
    return command_of(app).main(args=list(words), prog_name="x", standalone_mode=False)


def test_each_word_becomes_a_value_of_its_type():
    words = ["command", "a", "b/c", "--count", "9", "--share", ".5", "--scheme", "bf16"]
    assert called(*words, "--size", "4", "--size", "5") == {
        "paths": [Path("a"), Path("b/c")],
        "count": 9,
        "share": 0.5,
        "scheme": "BF16",
        "sizes": [4, 5],
    }


def test_what_is_not_given_keeps_its_default():
    values = {"paths": None, "count": 3, "share": None, "scheme": "int4", "sizes": None}
    assert called("command") == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "many"], "'many' is not a valid integer."),
        (["--count", "10"], "10 is not in the range 1<=x<=9."),
        (["--count", "0"], "0 is not in the range 1<=x<=9."),
        (["--share", "x"], "'x' is not a valid float."),
        (["--size", "4", "--size", "x"], "'x' is not a valid integer."),
        (["--scheme", "int9"], "'int9' is not one of 'int4', 'BF16'."),
    ],
)
def test_a_word_that_stands_for_no_value_is_named(words, said):
    with pytest.raises(typer.BadParameter) as caught:
        called("command", *words)
    assert caught.value.message == said
    assert caught.value.param is not None


def test_flags_of_the_table_are_given_by_key_and_none_is_one_that_was_not():
    assert called("flagged", "--vram", "8", "--no-exact-activations", "--kv-dtype", "INT8") == {
        "name": "x",
        "device": None,
        "exact_activations": False,
        "kv_dtype": "int8",
        "vram_gib": 8.0,
    }


def test_a_command_with_many_options_shows_them_in_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--help"]) == 0
    groups: dict[str, str] = {}
    title = ""
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line
        groups[title] = groups.get(title, "") + line + "\n"
    assert "--port" in groups["Options:"]
    assert "--kv-gib" in groups["The KV cache:"]
    assert "--api-keys-file" in groups["Access:"]
    assert sum(text.count(" --kv-gib ") for text in groups.values()) == 1
