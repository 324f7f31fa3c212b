"""When a service is taken for gone: nothing but failures for as long as was said."""

from mtrl_cli.envs.e2b.outage import Outage


def test_failures_in_a_row_for_long_enough() -> None:
    outage = Outage(60.0)
    assert not outage.failed(sent=0.0, now=31.0)
    assert not outage.failed(sent=31.0, now=62.0)
    assert outage.failed(sent=62.0, now=93.0)
    assert outage.failures == 3


def test_many_at_once_are_no_outage() -> None:
    outage = Outage(60.0)
    assert not any(outage.failed(sent=0.0, now=31.0) for _ in range(100))


def test_failures_that_are_learnt_of_after_an_answer_count_from_it() -> None:
    """Creations that hung for two minutes end together; others have succeeded meanwhile."""
    outage = Outage(60.0)
    outage.over(115.0)
    assert not any(outage.failed(sent=0.0, now=120.0) for _ in range(8))
    assert outage.failed(sent=120.0, now=175.0)
