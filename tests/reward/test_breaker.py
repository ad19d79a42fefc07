"""The circuit breaker, with a clock of its own."""

import pytest

from vcap_jax.reward.breaker import CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(3, clock)


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.failed("refused", trial=breaker.begin())


def test_failures_in_a_row_open_it(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 2)
    breaker.answered()
    fail(breaker, 2)
    assert breaker.state == "closed"
    assert breaker.since is None
    clock.now = 107.0
    fail(breaker, 1)
    assert (breaker.state, breaker.admits, breaker.epoch) == ("open", False, 1)
    assert (breaker.since, breaker.reason) == (107.0, "refused")
    with pytest.raises(RuntimeError, match="open breaker"):
        breaker.begin()


def test_a_good_probe_lets_one_request_try(breaker: CircuitBreaker) -> None:
    fail(breaker, 3)
    breaker.reachable(wanted=True)
    assert (breaker.state, breaker.admits) == ("half_open", True)
    assert breaker.begin() is True
    assert not breaker.admits
    breaker.answered()
    assert breaker.state == "closed"
    assert breaker.since is None
    assert breaker.begin() is False


def test_a_failed_trial_prolongs_the_same_outage(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now = 130.0
    breaker.reachable(wanted=True)
    breaker.failed("reset", trial=breaker.begin())
    assert (breaker.state, breaker.since, breaker.epoch) == ("open", 100.0, 1)
    breaker.reachable(wanted=True)
    assert breaker.doubted("timeout", trial=breaker.begin()) is False
    assert (breaker.state, breaker.since, breaker.reason) == ("open", 100.0, "timeout")


def test_a_trial_that_is_given_up_makes_room_for_another(breaker: CircuitBreaker) -> None:
    fail(breaker, 3)
    breaker.reachable(wanted=True)
    breaker.abandoned(trial=breaker.begin())
    assert (breaker.state, breaker.admits) == ("half_open", True)


def test_where_nobody_wants_to_try_a_good_probe_is_enough(breaker: CircuitBreaker) -> None:
    fail(breaker, 3)
    breaker.reachable(wanted=False)
    assert (breaker.state, breaker.since) == ("closed", None)


def test_what_was_sent_before_the_opening_decides_nothing_unless_it_is_an_answer(
    breaker: CircuitBreaker,
) -> None:
    old = [breaker.begin() for _ in range(6)]
    for trial in old[:4]:
        breaker.failed("reset", trial=trial)
    breaker.reachable(wanted=True)
    breaker.failed("reset", trial=old[4])
    assert breaker.doubted("timeout", trial=old[4]) is False
    assert breaker.state == "half_open"
    breaker.answered()
    assert (breaker.state, breaker.epoch) == ("closed", 1)


def test_doubts_in_a_row_ask_for_a_look(breaker: CircuitBreaker) -> None:
    asked = [breaker.doubted("timeout", trial=breaker.begin()) for _ in range(6)]
    assert asked == [False, False, True, False, False, True]
    assert breaker.state == "closed"
    breaker.doubted("timeout", trial=False)
    breaker.answered()
    assert [breaker.doubted("timeout", trial=False) for _ in range(3)] == [False, False, True]
