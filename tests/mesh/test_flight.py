"""When a step is late: as others like it took, and not while nobody could have taken its tokens."""

from __future__ import annotations

import pytest

from zse.mesh.flight import Flight, MeshStep


@pytest.fixture
def flight() -> Flight:
    flight = Flight(100)
    flight._steps[1] = MeshStep(1, b"", 1, now=10.0)
    flight.submitted = 1
    flight._slowest[1] = 0.2
    return flight


def test_a_step_is_late_behind_four_times_what_others_took(flight: Flight) -> None:
    assert flight.overdue(10.79) is None
    found = flight.overdue(10.9)
    assert found is not None
    assert (found.number, found.is_first) == (1, False)
    assert flight.overdue(10.5, resent=1) is not None  # it was sent again: half of it is enough


def test_what_this_process_slept_through_makes_no_step_late(flight: Flight) -> None:
    flight.overslept(2.0, 12.5)
    assert flight.overdue(12.79) is None
    assert flight.overdue(12.81) is not None
    flight.overslept(50.0, 13.0)  # more than it has waited: it begins anew, and no later
    assert flight.overdue(13.79) is None
    assert flight.overdue(13.81) is not None


def test_nothing_is_late_of_a_mesh_that_is_asked_nothing() -> None:
    flight = Flight(100)
    flight.overslept(2.0, 12.5)
    assert flight.overdue(1e6) is None
