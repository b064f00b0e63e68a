"""Looking at replicas: who is ready, down, asleep, new or gone; and who wakes them."""

import asyncio

import pytest
from route_world import ScriptedReplica, answer, refusal, stream

from zse.errors import UsageError
from zse.route.addresses import read_address, resolve, sources_of
from zse.route.replicas import State
from zse.route_options import RouteOptions


def state_of(w, number=0):
    return w.fleet.members[w.replicas[number].url].replica.state


def test_a_replica_that_dies_is_down_and_comes_back(world):
    async def test(w):
        await w.replicas[0].stop()
        await w.until(lambda: state_of(w) is State.DOWN)
        assert (await w.client.get("/health/ready")).status_code == 503
        await w.replicas[0].start()
        await w.until(lambda: state_of(w) is State.READY)
        assert (await w.chat()).text == "hello"

    world(1, test, dead_after=2)


def test_requests_wait_for_a_replica_that_is_loading(world):
    async def test(w):
        w.replicas[0].health = 503
        await w.until(lambda: state_of(w) is State.UNREADY)
        waiting = [asyncio.create_task(w.chat()) for _ in range(5)]
        await w.until(lambda: w.fleet.num_waiting == 5)
        w.replicas[0].health = 200
        assert [found.text for found in await asyncio.gather(*waiting)] == ["hello"] * 5
        assert not w.fleet.num_waiting

    world(1, test)


def test_so_many_wait_and_no_more_and_so_long_and_no_longer(world):
    async def test(w):
        w.replicas[0].health = 503
        await w.until(lambda: state_of(w) is State.UNREADY)
        waiting = [asyncio.create_task(w.chat()) for _ in range(2)]
        await w.until(lambda: w.fleet.num_waiting == 2)
        refused = await w.chat()
        assert refused.status_code == 429
        for found in await asyncio.gather(*waiting):
            assert found.status_code == 503
            assert found.json()["error"]["code"] == "no_replica"
            assert "retry-after" in found.headers

    world(1, test, max_waiting=2, route_wait=0.3)


def test_who_stops_waiting_is_not_waited_for(world):
    async def test(w):
        w.replicas[0].health = 503
        await w.until(lambda: state_of(w) is State.UNREADY)
        waiting = asyncio.create_task(w.chat())
        await w.until(lambda: w.fleet.num_waiting == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await w.until(lambda: not w.fleet.num_waiting)
        await w.until(lambda: not w.fleet.counts.in_flight)

    world(1, test)


def test_a_replica_has_so_many_requests_and_others_wait_in_turn(world):
    async def test(w):
        most = 0
        now = 0

        async def script(reader, writer, asked):
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.02)
            now -= 1
            await answer("done")(reader, writer, asked)

        w.replicas[0].script = script
        found = await asyncio.gather(*[w.chat() for _ in range(12)])
        assert {each.text for each in found} == {"done"}
        assert most == 2

    world(1, test, max_per_replica=2)


def test_a_hanging_replica_is_down_and_its_silent_answers_end(world):
    async def silent(reader, _writer, _asked):
        await reader.read()

    async def test(w):
        w.replicas[0].script = silent
        waiting = asyncio.create_task(w.chat())
        await w.until(lambda: w.replicas[0].asked)
        w.replicas[0].health = None  # looks get no answer, either
        found = await waiting
        assert found.status_code == 502
        assert state_of(w) is State.DOWN

    world(1, test, dead_after=1)


def test_a_stream_that_still_comes_outlives_missed_looks(world):
    async def test(w):
        w.replicas[0].script = stream(*[b"data: x\n\n"] * 80, pause=0.02)
        running = asyncio.create_task(w.chat())
        await w.until(lambda: w.replicas[0].asked)
        w.replicas[0].health = None
        found = await running
        assert found.text.count("data: x") == 80
        assert state_of(w) is State.DOWN

    world(1, test, dead_after=1)


def test_a_replica_that_fails_again_and_again_rests(world):
    async def test(w):
        w.replicas[0].script = answer("{}", 500)
        for _ in range(60):
            await w.chat()
        assert w.num_asked[0] == 3
        assert w.fleet.counts.ejections == 1

    world(2, test, eject_after=3)


def test_a_server_that_has_no_load_to_tell_is_looked_at_by_its_health(world):
    async def test(w):
        look = w.looks._tasks  # all of them look at once
        assert look
        w.replicas[0].health = 404
        await w.until(lambda: state_of(w) is State.UNREADY)  # none of the three is there
        w.replicas[0].health = 200
        await w.until(lambda: state_of(w) is State.READY)

    world(1, test)


def test_the_busier_replica_is_spared(world):
    async def test(w):
        w.replicas[0].load["waiting"] = 50
        await w.until(lambda: w.fleet.members[w.replicas[0].url].replica.load.waiting)
        for _ in range(10):
            await w.chat()
        assert w.num_asked == [0, 10]

    world(2, test)


def test_a_conversation_stays_where_its_beginning_is(world):
    async def test(w):
        text = "once upon a time " * 40
        await w.chat(text)
        home = w.num_asked.index(1)
        for turn in range(8):
            await w.chat(text + "and then " * 20 * turn)
        assert w.num_asked[home] == 9

    world(5, test)


def test_who_is_named_is_looked_at_and_who_is_not_named_any_more_gets_nothing(world):
    async def test(w):
        more = ScriptedReplica()
        await more.start()
        running = asyncio.create_task(w.chat())
        w.replicas[0].script = stream(*[b"data: x\n\n"] * 20, pause=0.02)
        await running
        running = asyncio.create_task(w.chat())
        await w.until(lambda: w.fleet.counts.in_flight)
        w.addresses[:] = [read_address(more.url)]
        await w.looks._read_names()
        await w.until(lambda: w.fleet.replicas[0].state is State.READY)
        assert (await w.chat()).text == "hello"
        assert len(more.asked) == 1
        assert (await running).text.count("data: x") == 20  # what it had begun
        await more.stop()

    world(1, test)


def test_whoever_starts_replicas_is_told_that_requests_wait(world):
    async def test(w):
        waker = ScriptedReplica()
        await waker.start()
        object.__setattr__(w.options, "wake_url", f"{waker.url}/scale?up=1")
        w.fleet.is_woken_from_outside = True
        task = asyncio.create_task(w.looks._wake())
        waiting = asyncio.create_task(w.chat())
        await w.until(lambda: waker.asked)
        assert (waker.asked[0].target, waker.asked[0].body) == ("/scale?up=1", b'{"waiting": 1}')
        new = ScriptedReplica()
        await new.start()
        w.addresses.append(read_address(new.url))
        await w.looks._read_names()
        assert (await waiting).text == "hello"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await new.stop()
        await waker.stop()

    world(0, test)


def test_nobody_waits_for_replicas_that_nobody_brings(world):
    async def test(w):
        assert (await w.chat()).status_code == 503

    world(0, test, route_wait=3600.0)


def test_a_503_that_a_look_has_not_seen_costs_a_wait_and_no_answer(world):
    async def test(w):
        w.replicas[0].script = refusal(503)
        waiting = asyncio.create_task(w.chat())
        await w.until(lambda: len(w.replicas[0].asked) >= 2)  # looks say that it is ready
        w.replicas[0].script = answer("hello")
        assert (await waiting).text == "hello"

    world(1, test)


@pytest.mark.parametrize(
    ("text", "netloc"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://a.b-c", "a.b-c:80"),
        ("a.b.", "a.b.:80"),
        ("https://[::1]:443/", "[::1]:443"),
    ],
)
def test_an_address_is_read(text, netloc):
    assert read_address(text).netloc == netloc


@pytest.mark.parametrize(
    "text",
    [
        *("", "ftp://a", "http://a/b", "http://a:0", "a:99999", "a b", "http://u:p@h", "a\r\nb"),
        *("a..b", ".a", "a" * 64, "http://\u0661.2.3.4"),
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match="no address"):
        read_address(text)


def test_a_file_of_replicas_is_read_and_a_missing_one_is_told(tmp_path):
    path = tmp_path / "replicas"
    path.write_text("10.0.0.1:8000 # the first\n\n# none\nhttp://b:80\n")
    (source,) = sources_of(RouteOptions(replicas_file=str(path)))
    assert [each.name for each in source()] == ["http://10.0.0.1:8000", "http://b:80"]
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        source()
    with pytest.raises(UsageError, match="no replicas are named"):
        sources_of(RouteOptions())


def test_a_name_stands_for_its_addresses():
    assert "127.0.0.1:9" in [each.netloc for each in resolve("localhost:9")]
    assert resolve("name.invalid:9") == []
