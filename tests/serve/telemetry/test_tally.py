from zse.serve.telemetry.tally import Tally


def test_a_value_counts_at_its_own_bound_and_at_all_above():
    tally = Tally((1.0, 2.0))
    tally.note([0.5, 1.0])
    tally.note([1.5, 3.0])
    assert tally.cumulative() == [2, 3, 4]
    assert tally.sum == 6.0
