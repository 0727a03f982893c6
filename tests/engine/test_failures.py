"""The failure policy: every answer, by itself; what acts on them is tested in tests/faults."""

import pytest

from raysim.engine.failures import Decision, FailurePolicy
from tests.simulate import configure

RETRY, REPLACE, GIVE_UP, SKIP, STOP = Decision


def policy(**settings) -> FailurePolicy:
    return FailurePolicy.of(configure(**settings))


@pytest.mark.parametrize(
    ("settings", "answers"),
    [
        ({"on_client_error": "stop"}, [STOP]),
        ({"on_client_error": "retry", "client_retries": 2}, [RETRY, RETRY, STOP]),
        ({"on_client_error": "retry", "client_retries": 0}, [STOP]),
        ({"on_client_error": "skip", "client_retries": 1}, [RETRY, SKIP]),
        ({"on_client_error": "skip", "client_retries": 0}, [SKIP]),
    ],
    ids=str,
)
def test_a_client_that_fails_again_and_again(settings, answers):
    assert [policy(**settings).client_failed(failures) for failures in range(1, len(answers) + 1)] == answers


def test_one_of_a_fused_group_is_left_out_only_where_clients_may_be():
    assert policy(on_client_error="skip").fused_client_failed() is SKIP
    assert policy(on_client_error="retry").fused_client_failed() is RETRY


def test_the_fourth_failure_in_a_row_is_the_last():
    asked = policy()
    four = range(1, 5)
    assert [asked.group_took_actor_down(n) for n in four] == [RETRY, RETRY, RETRY, STOP]
    assert [asked.server_lost(n) for n in four] == [REPLACE, REPLACE, REPLACE, STOP]
    assert [asked.actor_failed_to_start(n, needed=True) for n in four] == [RETRY, RETRY, RETRY, STOP]
    assert [asked.actor_failed_to_start(n, needed=False) for n in four] == [RETRY, RETRY, RETRY, GIVE_UP]


def test_without_memory_an_actor_is_given_up_while_there_are_others():
    assert policy().actor_lost(out_of_memory=True, others=1) is GIVE_UP
    assert policy().actor_lost(out_of_memory=True, others=0) is REPLACE
    assert policy().actor_lost(out_of_memory=False, others=3) is REPLACE
    assert policy().actor_on_other_hardware() is GIVE_UP


def test_how_long_a_call_may_take():
    assert policy(watchdog=900).seconds_allowed(clients=3, seconds_expected=None) == 900
    assert policy().seconds_allowed(clients=3, seconds_expected=2.0) == 60 + 10 * 2.0
    assert policy(client_timeout=15).seconds_allowed(clients=3, seconds_expected=2.0) == 45
