import pytest

from zse.errors import InvalidParameterError, OverloadedError
from zse.serve.admission import Admission, Limits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def refused():
    return []


@pytest.fixture
def admission(clock, refused):
    limits = Limits(choices=10, prompt_tokens=100)
    return Admission(lambda: limits, on_refusal=lambda: refused.append(1), clock=clock)


def test_choices_are_let_in_up_to_the_limit_and_leave_one_by_one(admission, refused):
    room = admission.admit(8)
    with pytest.raises(OverloadedError):
        admission.admit(3)
    room.end_choice()
    admission.admit(3)
    assert (admission.num_choices, len(refused)) == (10, 1)


def test_what_never_fits_is_refused_for_good(admission, refused):
    with pytest.raises(InvalidParameterError):
        admission.admit(11)
    assert not refused


def test_room_is_given_back_once_however_it_ends(admission):
    room = admission.admit(3, num_prompt_tokens=50)
    room.use(60)
    assert admission.num_prompt_tokens == 60
    for _ in range(5):
        room.end_choice()
    room.close()
    room.close()
    assert (admission.num_choices, admission.num_prompt_tokens) == (0, 0)


def test_room_that_no_work_took_over_goes_with_its_request(admission):
    unused, used = admission.admit(1), admission.admit(1)
    used.use(5)
    for room in (unused, used):
        room.abandon()
    assert (unused.is_open, used.is_open) == (False, True)


def test_prompts_are_let_in_up_to_their_tokens_and_a_long_one_when_it_is_alone(admission):
    admission.admit(1, num_prompt_tokens=1000).close()
    admission.admit(1, num_prompt_tokens=60)
    with pytest.raises(OverloadedError, match="prompt tokens"):
        admission.admit(1, num_prompt_tokens=60)
    admission.admit(1, num_prompt_tokens=40)


def test_when_to_come_back_follows_the_rate_at_which_choices_end(admission, clock):
    assert admission.seconds_until(1) == 1.0  # nothing is known
    rooms = [admission.admit(1) for _ in range(10)]
    for room in rooms[:4]:
        clock.now += 2.0
        room.end_choice()
    # Four ended, six seconds lie between the first of them and now.
    assert admission.seconds_until(1) == pytest.approx(1.5)
    assert admission.seconds_until(4) == pytest.approx(6.0)
    clock.now += 100.0  # and nothing ends any more
    assert admission.seconds_until(1) == pytest.approx(26.5)
    assert admission.seconds_until(10) == 60.0


def test_a_refusal_says_when_there_is_room_for_this_request(admission, clock):
    rooms = [admission.admit(1) for _ in range(10)]
    for room in rooms[:2]:
        clock.now += 3.0
        room.end_choice()
    with pytest.raises(OverloadedError) as caught:
        admission.admit(6)  # four too many
    assert caught.value.retry_after_seconds == pytest.approx(6.0)


def test_a_key_that_asks_without_end_leaves_room_for_others(admission, refused):
    rooms = [admission.admit(1, tenant="greedy") for _ in range(8)]
    with pytest.raises(OverloadedError, match="8 of 10 answers are of this key"):
        admission.admit(1, tenant="greedy")
    admission.admit(1, tenant="other")
    admission.admit(1)  # who needs no key is refused by the limit alone
    with pytest.raises(OverloadedError, match="10 of 10"):
        admission.admit(1, tenant="third")
    rooms.pop().close()
    admission.admit(1, tenant="third")
    assert len(refused) == 2


def test_prompts_of_one_key_leave_room_for_those_of_others(admission):
    room = admission.admit(1, num_prompt_tokens=100, tenant="greedy")  # alone it may have all
    room.use(80)
    with pytest.raises(OverloadedError, match="80 of 100 prompt tokens are of this key"):
        admission.admit(1, num_prompt_tokens=1, tenant="greedy")
    admission.admit(1, num_prompt_tokens=15, tenant="other")
    room.close()
    assert admission.num_prompt_tokens == 15
