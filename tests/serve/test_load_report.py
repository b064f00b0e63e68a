"""How busy a server says that it is."""

from zse.engine.stats import EngineStats
from zse.serve.shutdown import Presence


def test_load_is_what_engines_do_and_hold(call, state):
    stats = EngineStats(num_running=3, num_waiting=2, kv_blocks_total=8, kv_blocks_used=2)
    state.model.engine.stats = lambda: stats
    told = call("GET", "/load").json()
    assert told == {
        "running": 3,
        "waiting": 2,
        "in_flight": 0,
        "kv_usage": 0.25,
        "sleep_level": 0,
    }


def test_who_takes_no_requests_says_that_instead(call, loading, state):
    state.presence = Presence.LEAVING
    assert call("GET", "/load").status_code == 503


def test_a_server_that_loads_says_so(loading):
    found = loading("GET", "/load")
    assert found.status_code == 503
    assert "retry-after" in found.headers
