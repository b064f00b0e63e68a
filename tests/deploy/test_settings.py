"""Settings of ``--set``: typed, listed by the help, suggested when a name is wrong."""

import pytest

from zse.cli import run
from zse.deploy.order import Order
from zse.deploy.registry import TARGETS, settings_of
from zse.deploy.settings import Setting, take_settings
from zse.errors import UsageError

IMAGE = "ghcr.io/acme/qwen:1"
KNOWN = (
    Setting(name="price", meaning="a price"),
    Setting(name="zones", meaning="zones", kind="list"),
    Setting(name="labels", meaning="labels", kind="pairs"),
    Setting(name="is-fast", meaning="speed", kind="flag"),
    Setting(name="pause", meaning="seconds", kind="number", default="5"),
    Setting(name="policy", meaning="a policy", choices=("Always", "Never")),
    Setting(name="of-form", meaning="of one form only", form="other"),
)


def taken(**extra: str) -> dict:
    return take_settings(Order(image=IMAGE, extra=extra), KNOWN)


def test_values_have_the_kind_of_their_setting_and_defaults_are_filled_in():
    given = {"zones": "a,b", "labels": "x=1,y=a=b", "is-fast": "true", "policy": "Never"}
    assert take_settings(Order(image=IMAGE, extra=given), KNOWN) == {
        "zones": ["a", "b"],
        "labels": {"x": "1", "y": "a=b"},
        "is-fast": True,
        "pause": 5,
        "policy": "Never",
    }


@pytest.mark.parametrize(
    "extra",
    [{"labels": "x"}, {"is-fast": "yes"}, {"pause": "-1"}, {"pause": "1e9"}, {"policy": "never"}],
)
def test_a_malformed_value_says_what_was_expected(extra):
    with pytest.raises(UsageError, match="expected"):
        taken(**extra)


def test_a_wrong_name_suggests_the_right_one():
    with pytest.raises(UsageError) as caught:
        taken(prise="1")
    assert caught.value.hint == "Did you mean price?"
    with pytest.raises(UsageError) as caught:
        taken(is_fast="true")
    assert caught.value.hint == "Did you mean is-fast?"


def test_a_setting_of_another_form_is_not_known():
    with pytest.raises(UsageError, match="no setting of-form"):
        taken(**{"of-form": "1"})


def test_a_needed_setting_says_how_to_give_it(make_order):
    needed = Setting(name="bucket", meaning="of the answers", is_needed=True)
    with pytest.raises(UsageError, match="needs bucket: of the answers") as caught:
        take_settings(Order(image=IMAGE), (needed,))
    assert "--set bucket=TEXT" in caught.value.hint


@pytest.mark.parametrize("target", TARGETS)
def test_help_of_a_target_lists_each_of_its_settings_once(target, capsys):
    assert run(["deploy", target, "--help"]) == 0
    text = capsys.readouterr().out
    for setting in settings_of(target):
        assert text.count(f"  {setting.written}") == 1, setting.name
        assert setting.meaning


@pytest.mark.parametrize("target", TARGETS)
def test_a_form_knows_no_setting_twice(target):
    for form in TARGETS[target].forms or ("",):
        names = [item.name for item in settings_of(target) if item.form in ("", form)]
        assert len(names) == len(set(names))
    assert {item.form for item in settings_of(target)} <= {"", *TARGETS[target].forms}
