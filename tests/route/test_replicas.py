"""What is known of a replica, from what was seen of it."""

from zse.route.replicas import Load, Replica, State, may_rest


def ready(name="a"):
    made = Replica(name)
    made.saw_ready(Load())
    return made


def test_a_replica_takes_requests_once_it_was_seen_ready():
    replica = Replica("a")
    assert not replica.takes_requests(0.0)
    replica.saw_ready()
    assert replica.takes_requests(0.0)
    replica.saw_unready()
    assert not replica.takes_requests(0.0)


def test_one_missed_look_does_not_make_it_down_but_several_do():
    replica = ready()
    assert [replica.missed(1.0, dead_after=3) for _ in range(4)] == [False, False, True, False]
    assert replica.state is State.DOWN
    replica.saw_ready()
    assert [replica.missed(2.0, dead_after=3) for _ in range(2)] == [False, False]


def test_one_that_was_never_seen_is_down_at_the_first_missed_look():
    replica = Replica("a")
    replica.missed(0.0, dead_after=3)
    assert replica.state is State.DOWN


def test_who_comes_back_has_lost_its_cache():
    replica = ready()
    before = replica.key
    replica.saw_ready()
    assert replica.key == before
    replica.saw_refused(1.0)
    replica.saw_ready()
    assert replica.key != before


def test_requests_of_others_count_too_and_ours_only_once():
    replica = ready()
    replica.in_flight = 3
    replica.saw_ready(Load(running=3, waiting=0))
    assert replica.busyness == 3
    replica.saw_ready(Load(running=5, waiting=2))
    assert replica.busyness == 3 + 4 + 2


def test_a_rest_is_longer_each_time_and_shorter_after_answers():
    replica = ready()
    replica.rest(0.0, 10.0)
    assert not replica.takes_requests(9.9)
    assert replica.takes_requests(10.0)
    replica.rest(20.0, 10.0)
    assert replica.rests_until == 40.0
    for _ in range(2):
        replica.succeeded()
    replica.rest(50.0, 10.0)
    assert replica.rests_until == 60.0


def test_never_more_than_half_of_the_replicas_rest():
    replicas = [ready(str(number)) for number in range(4)]
    for number in range(4):
        if may_rest(replicas, 0.0):
            replicas[number].rest(0.0, 10.0)
    assert sum(each.takes_requests(1.0) for each in replicas) == 2
    assert not may_rest([ready()], 0.0)
