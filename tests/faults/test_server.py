"""The server dies and the run goes on from its last checkpoint: same models, same metrics, same synthetic data."""

import pytest
import ray

from raysim.data.synthetic_tables import table_digest
from raysim.engine.failures import ServerLost
from raysim.engine.ray_runner.actors import ServerActor
from raysim.engine.ray_runner.runner import RayRunner
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints
from tests.simulate import SYNTHESIS, comparable, simulate, simulate_on_ray, told_to

SETTINGS = SYNTHESIS | {"rounds": 4, "active": 10}


def saver_in(folder):
    return lambda runner: CheckpointWriter(Checkpoints(folder / "checkpoints", {}), runner, runner.on_event)


@pytest.mark.usefixtures("local_ray")
class TestServerLost:
    @pytest.mark.parametrize(
        ("keeps", "dies_in"),
        [
            (True, 3),
            *(pytest.param(keeps, t, marks=pytest.mark.slow) for keeps, t in ((False, 3), (True, 1), (False, 1))),
        ],
    )
    def test_the_run_goes_on(self, tmp_path, dies_in, keeps):
        """With checkpoints from the last one, without from the beginning."""
        (tmp_path / "fuses").mkdir()
        (tmp_path / "fuses" / "a").touch()
        doom = {"doomed.server": True, "doomed.round": dies_in, "doomed.fuses": str(tmp_path / "fuses")}
        settings = SETTINGS | doom | {"method": "hfmds+fedpa+tests.parts.doomed"}
        seen = []
        saver = saver_in(tmp_path) if keeps else None
        killed = simulate_on_ray(**settings, actors=2, saver=saver, on_round=lambda line: seen.append(line["round"]))
        undisturbed = simulate(**SETTINGS)
        assert comparable(killed) == comparable(undisturbed)
        assert table_digest(killed.shared["hfmds"]) == table_digest(undisturbed.shared["hfmds"])
        assert sum(line["failures"] for line in killed.history) == 1
        assert seen == ([1, 2, 3, 4] if keeps or dies_in == 1 else [1, 2, 1, 2, 3, 4])

    @pytest.mark.parametrize("method", ["receive", pytest.param("update", marks=pytest.mark.slow)])
    def test_a_call_that_never_arrives_is_noticed_though_nobody_reads_its_answer(self, tmp_path, monkeypatch, method):
        send, lost, events = RayRunner.call_server, [], []

        def losing(runner, called, *arguments, returns=1):
            if called.__name__ == method and not lost:
                lost.append(method)
                runner.server_calls += 1
                return ray.put(None)
            return send(runner, called, *arguments, returns=returns)

        monkeypatch.setattr(RayRunner, "call_server", losing)
        disturbed = simulate_on_ray(**SETTINGS, actors=2, saver=saver_in(tmp_path), on_event=told_to(events))
        assert lost == [method]
        assert [details["reason"] for kind, details in events if kind == "server_lost"]
        assert comparable(disturbed) == comparable(simulate(**SETTINGS))

    def test_a_round_that_always_kills_it_ends_the_run(self, tmp_path):
        with pytest.raises(ServerLost, match="the server actor was lost"):
            simulate_on_ray(method="tests.parts.doomed", actors=1, saver=saver_in(tmp_path), **{"doomed.server": True})


class Host(ServerActor.__ray_metadata__.modified_class):
    """A server's host without Ray."""

    def __init__(self, held):
        self.name, self.gpus, self.held, self.calls, self.failure = "server", [], held, 0, None


class Held:
    """Counts, and fails for a negative number."""

    total = 0

    def add(self, number):
        if number < 0:
            raise ValueError("negative")
        self.total += number
        return self.total


def test_after_a_call_that_failed_or_never_arrived_no_more_are_done():
    host = Host(Held())
    assert [host.call_in_order(i, "add", 1) for i in range(3)] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(ServerLost, match=r"^call 3 of the server was lost on the way$"):
            host.call_in_order(4, "add", 1)
    host = Host(Held())
    for number, value in enumerate((-1, 1)):
        with pytest.raises(ValueError, match="negative"):
            host.call_in_order(number, "add", value)
    assert host.held.total == 0
