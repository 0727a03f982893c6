"""What becomes of a run whose Ray dies, without a Ray."""

import threading
import time

import pytest

from raysim.engine.ending import ending
from raysim.engine.ray_runner import cluster


class Died:
    """Beside a run whose raylet has died."""

    run_directory, reported = "", {"running"}

    def deaths(self):
        yield "raylet"


def test_in_somebodys_program_the_main_thread_is_interrupted_and_nothing_else(monkeypatch):
    monkeypatch.setattr(cluster, "DEATH_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "end_with", lambda line, before: pytest.fail("the process would have ended"))
    ending.begin(in_command=False)
    deaths: list[str] = []
    watching = threading.Thread(target=cluster._watch_daemons, args=(Died(), deaths, [], threading.Event()))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes at any moment from here on
        watching.start()
        time.sleep(10)
    watching.join()
    assert deaths == ["raylet"]


def test_a_command_ends_with_the_line(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(cluster, "DEATH_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "end_with", lambda line, before: said.append(line))
    ending.begin()
    try:
        cluster._watch_daemons(Died(), [], [], threading.Event())
    finally:
        ending.begin(in_command=False)
    assert said == ["raysim: Ray's raylet died; give the same command again"]
