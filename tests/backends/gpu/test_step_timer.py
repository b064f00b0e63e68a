"""When a GPU worked at a step, by marks in its stream."""

from dataclasses import dataclass, field

from zse.backends.gpu.step_timer import StepTimer


@dataclass
class Mark:
    """An event that is reached when it is recorded, by a clock that work moves on."""

    clock: list
    at: float = -1.0

    def record(self, _stream):
        self.at = self.clock[0]

    def synchronize(self):
        assert self.at >= 0

    def elapsed_ms(self, since):
        assert min(self.at, since.at) >= 0, "a mark that was not set"
        return self.at - since.at


@dataclass
class Gpu:
    clock: list = field(default_factory=lambda: [0.0])

    def create_event(self, *, timing):
        assert timing
        return Mark(self.clock)


class Step:
    def __init__(self):
        self.is_sampled = False

    def sample(self):
        self.is_sampled = True

    def wait(self):
        return ["answers"]


def test_a_step_is_told_what_it_took_and_how_long_nothing_was_done_before_it():
    gpu = Gpu()
    timer = StepTimer(gpu, stream=None)

    def submit(milliseconds):
        gpu.clock[0] += milliseconds
        return Step()

    for number in range(20):
        timed = timer.time(lambda number=number: submit(number))
        gpu.clock[0] += 3
        timed.sample()
        assert timed.wait() == ["answers"]
        assert timed.busy_seconds == number / 1e3
        assert timed.idle_seconds == (3 / 1e3 if number else 0.0)


def test_two_steps_in_flight_have_marks_of_their_own():
    gpu = Gpu()
    timer = StepTimer(gpu, stream=None)
    first = timer.time(lambda: gpu.clock.__setitem__(0, 5.0) or Step())
    second = timer.time(lambda: gpu.clock.__setitem__(0, 7.0) or Step())
    assert first.wait() == second.wait()
    assert (first.busy_seconds, second.busy_seconds) == (5 / 1e3, 2 / 1e3)
    assert second.idle_seconds == 0
