"""What is shown of a copy while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.cli.transfer_display import PlainLines, _bars, _bytes_bar, shown_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_plain_lines_show_share_speed_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 1.0, 10.0, 11.0, 20.0])
    lines = PlainLines(clock=lambda: next(seconds))
    for done_bytes in (0, 100, 4_000_000):
        lines("pulling", done_bytes, 8_000_000)
    for done_bytes in (1_000_000, 1_000_000):
        lines("checking", done_bytes, 2_000_000)
    assert capsys.readouterr().err == (
        "pulling: 50%, 4.0 MB of 8.0 MB, 400.0 KB/s, 10 s left\n"
        "checking: 50%, 1.0 MB of 2.0 MB, 0 B/s\n"
    )


def test_bars_take_every_stage_and_end_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with _bars(_bytes_bar) as show:
        for word in ("converting", "uploading"):
            for done_bytes in (0, 50, 100):
                show(word, done_bytes, 100)
    assert capsys.readouterr().out == ""


def test_stages_of_opening_a_model_have_words_and_others_are_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []

    def recording(_words: Callable[[float], str]) -> Callable[[str, int, int], None]:
        return lambda word, done_bytes, total_bytes: shown.append(word)

    monkeypatch.setattr("zse.cli.transfer_display.PlainLines", recording)
    with shown_progress() as progress:
        progress("fetch", 1, 2)
        progress("convert", 1, 2)
        progress("pushing", 1, 2)
    assert shown == ["fetching", "converting", "pushing"]
