"""What the router tells of itself, and to whom."""

import pytest


def test_metrics_say_what_was_done(world):
    async def test(w):
        for _ in range(3):
            await w.chat("a" * 1000)
        text = (await w.client.get("/metrics")).text
        lines = dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[0] != "#")
        assert lines['zse_route_requests_total{status="200"}'] == "3"
        assert lines[f'zse_route_replica_ready{{replica="{w.replicas[0].url}"}}'] == "1"
        assert lines["zse_route_first_byte_seconds_count"] == "3"
        assert lines["zse_route_prefix_blocks_matched_total"] == "16"
        assert lines["zse_route_in_flight"] == "0"

    world(1, test)


def test_metrics_are_text_that_prometheus_reads(world):
    parser = pytest.importorskip("prometheus_client.parser")

    async def test(w):
        await w.chat()
        families = {f.name for f in parser.text_string_to_metric_families(
            (await w.client.get("/metrics")).text)}  # fmt: skip
        assert {"zse_route_requests", "zse_route_wait_seconds"} <= families

    world(1, test)


def test_an_operator_takes_a_replica_out_and_back_in(world):
    async def test(w):
        change = {"replica": w.replicas[0].url, "drained": True}
        told = (await w.client.post("/route/replicas", json=change)).json()["replicas"]
        assert [each["drained"] for each in told] == [True, False]
        for _ in range(6):
            await w.chat()
        assert w.num_asked == [0, 6]
        await w.client.post("/route/replicas", json=change | {"drained": False})
        for _ in range(20):
            await w.chat()
        assert w.num_asked[0]

    world(2, test, prefix_blocks=0)


@pytest.mark.parametrize("body", ["", "{}", '{"replica": "x", "drained": 1}', "[]"])
def test_what_is_no_change_is_refused(body, world):
    async def test(w):
        found = await w.client.post("/route/replicas", content=body)
        assert found.status_code == 400
        assert not w.fleet.counts.held_bytes

    world(1, test)


def test_what_the_router_tells_of_itself_needs_its_key(world):
    async def test(w):
        for path in ("/metrics", "/route/replicas"):
            for headers in (
                {},
                {"authorization": "Bearer no"},
                [(b"authorization", b"Bearer k\xe9")],
            ):
                found = await w.client.get(path, headers=headers)
                assert found.status_code == 403
            given = {"authorization": "Bearer secret"}
            assert (await w.client.get(path, headers=given)).status_code == 200
        assert (await w.client.get("/health")).status_code == 200
        assert sum(w.num_asked) == 0

    world(1, test, route_key="secret")


def test_without_a_key_it_is_told_to_nobody_whom_a_proxy_passes_on(world):
    async def test(w):
        headers = {"x-forwarded-for": "127.0.0.1"}
        assert (await w.client.get("/metrics", headers=headers)).status_code == 403
        assert (await w.client.get("/metrics")).status_code == 200

    world(1, test)


def test_a_router_that_leaves_says_so_to_balancers_and_still_answers(world):
    async def test(w):
        w.app.is_leaving = True
        assert (await w.client.get("/health/ready")).status_code == 503
        assert (await w.client.get("/health/live")).status_code == 200
        assert (await w.chat()).text == "hello"

    world(1, test)
