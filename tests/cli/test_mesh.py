"""`zse mesh`: plans of machines that are written down, and nodes that are asked."""

from __future__ import annotations

import json

import pytest

from zse.cli import run
from zse.mesh.devices import NodeDevices
from zse.mesh.facts import read_mesh
from zse.mesh.node import Node, NodeSetup
from zse.mesh.probe import facts_of_machine

NODES = {
    "nodes": [
        {"name": "a", "memory_gib": 24, "gb_per_s": 700},
        {"name": "b", "memory_gib": 24, "gb_per_s": 600, "devices": 2},
        {"name": "c", "memory_gib": 12, "gb_per_s": 230},
    ],
    "links": [{"from": "a", "to": "b", "mbit_per_s": 10000, "ms": 0.1}],
    "link": {"mbit_per_s": 1000, "ms": 0.5},
}
MODEL = "Qwen/Qwen2.5-72B-Instruct"


def plan(tmp_path, nodes, *words):
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(nodes) if isinstance(nodes, dict) else nodes)
    return run(["mesh", "plan", MODEL, "--nodes", str(file), *words])


def test_a_plan_says_what_lies_where_and_why(tmp_path, capsys):
    assert plan(tmp_path, NODES, "--json", "--streams", "8") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stages"][0]["first_layer"] == 0
    assert report["stages"][-1]["end_layer"] == 80
    assert {stage["devices"] for stage in report["stages"] if stage["node"] == "b"} == {2}
    assert report["tokens_per_second"] > 0
    assert any("takes longest" in reason for reason in report["why"])
    assert plan(tmp_path, NODES) == 0
    shown = capsys.readouterr().out
    assert "predicted:" in shown
    assert "a slow" not in shown


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("{", "is no JSON"),
        ({}, 'a list "nodes"'),
        ({"nodes": []}, "0 nodes named nothing"),
        ({"nodes": [{"name": "a", "memory_gib": 1, "gb_per_s": 0}]}, "above 0"),
        ({"nodes": [{"name": "a", "memory_gib": "x", "gb_per_s": 1}]}, "'memory_gib' is 'x'"),
        ({"nodes": [{"name": "a", "memory_gib": 1, "gb_per_s": 1, "x": 1}]}, "unknown fields: x"),
        ({"nodes": [{"memory_gib": 1, "gb_per_s": 1}]}, "'name' is None"),
        (NODES | {"links": [{"from": "a", "to": "z"}]}, "a link names 'z'"),
        (NODES | {"link": 3}, "a link is an object"),
    ],
    ids=str,
)
def test_a_file_that_no_mesh_can_be_is_refused_with_what_is_wrong(tmp_path, capsys, nodes, message):
    assert plan(tmp_path, nodes) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "hint: docs/guides/mesh.md" in told


def test_a_file_of_nodes_that_is_not_there_is_said_with_what_to_do(tmp_path, capsys):
    assert run(["mesh", "plan", MODEL, "--nodes", str(tmp_path / "absent.json")]) == 2
    assert "zse mesh status --json" in capsys.readouterr().err


def test_a_model_that_fits_nowhere_says_what_is_lacking(tmp_path, capsys):
    small = {"nodes": [{"name": "a", "memory_gib": 1, "gb_per_s": 100}]}
    assert plan(tmp_path, small) == 14
    assert "1 nodes have 1.00 GiB together" in capsys.readouterr().err.replace(
        "1.0 GiB", "1.00 GiB"
    )


def test_status_shows_who_is_there_and_who_is_not(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("ZSE_MESH_SECRET", "a secret of sixteen")
    setup = NodeSetup(name="n0", secret=b"a secret of sixteen")
    two = NodeDevices(names=("cpu",) * 2, shares=(2,))
    node = Node(setup, lambda: facts_of_machine("n0", 2 << 30, two), lambda _: None).start()
    try:
        where = f"{node.address},127.0.0.1:1"
        assert run(["mesh", "status", "--mesh", where, "--wait", "0"]) == 0
        shown = capsys.readouterr().out
        assert "n0" in shown
        assert "2 x 1.00 GiB" in shown.replace("1.0 GiB", "1.00 GiB")
        assert "127.0.0.1:1 cannot be reached" in shown
        assert run(["mesh", "status", "--mesh", where, "--wait", "0", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["plan"]["nodes"][0]["memory_gib"] == 1
        assert report["plan"]["nodes"][0]["devices"] == 2
        (tmp_path / "nodes.json").write_text(json.dumps(report["plan"]))
        assert read_mesh(tmp_path / "nodes.json").nodes[0].devices == 2
    finally:
        node.close()


def test_without_a_secret_nothing_is_asked(monkeypatch, capsys):
    monkeypatch.delenv("ZSE_MESH_SECRET", raising=False)
    assert run(["mesh", "status", "--mesh", "127.0.0.1:1"]) == 2
    assert "ZSE_MESH_SECRET" in capsys.readouterr().err
