"""Clients that raise, hang or give back nonsense: retried, replaced or left out, as declared, and recorded by name."""

import pytest

from raysim.engine.failures import ClientFailure, RunFailure
from raysim.engine.in_process import InProcess
from raysim.methods.common import synthesis
from raysim.methods.hfmds import HFMDS
from tests.simulate import blobs, comparable, simulate, simulate_on_ray, told_to

DOOMED = {"method": "tests.parts.doomed", "active": 10}
WEIGHTLESS = {"method": "tests.parts.weightless", "active": 10}
ALL = {"active": 10}


def fuses(folder, count: int) -> dict[str, str]:
    for i in range(count):
        (folder / str(i)).touch()
    return {"doomed.fuses": str(folder)}


def watched(runner=None):
    """A runner and the events it tells."""
    events = []
    runner = runner or InProcess()
    runner.on_event = told_to(events)
    return runner, events


@pytest.mark.parametrize("fuse", [1, 4])
def test_a_client_that_raises_is_tried_again_and_every_time_recorded(tmp_path, fuse):
    runner, events = watched()
    result = simulate(runner=runner, **DOOMED, **{"doomed.how": "raises"}, **fuses(tmp_path, 2), fuse=fuse)
    assert comparable(result) == comparable(simulate(**ALL, fuse=fuse))
    assert [line["failures"] for line in result.history] == [0, 2, 0]
    assert [line["retries"] for line in result.history] == [0, 2, 0]
    assert [kind for kind, _ in events] == ["client_failed"] * 2
    assert all("this client is doomed" in details["text"] for _, details in events)
    assert not list(tmp_path.iterdir())


def test_it_stops_the_run_after_its_retries_or_at_once(tmp_path):
    for settings, tries in (({}, 3), ({"client_retries": 0}, 1), ({"on_client_error": "stop"}, 1)):
        burning = fuses(tmp_path, 9)
        with pytest.raises(ClientFailure, match=r"client 3 failed in round 2 .*this client is doomed") as caught:
            simulate(**DOOMED, **{"doomed.how": "raises"}, **burning, **settings)
        assert "doomed.py" in caught.value.traceback
        assert 9 - len(list(tmp_path.iterdir())) == tries


@pytest.mark.parametrize("how", ["raises", "nan"])
@pytest.mark.parametrize("fuse", [1, 4])
def test_a_client_left_out_counts_nothing_and_is_named(how, fuse):
    """As if its weight were 0. Where clients are fused and the joint step raises, its group is left out."""
    runner, events = watched()
    settings = {"on_client_error": "skip", "client_retries": 1, "fuse": fuse}
    result = simulate(runner=runner, **DOOMED, **settings, **{"doomed.how": how})
    skipped = [details["client"] for kind, details in events if kind == "client_skipped"]
    together = [0, 1, 2, 3] if (how, fuse) == ("raises", 4) else [3]
    assert skipped == together
    assert [line.get("skipped", 0) for line in result.history] == [0, len(together), 0]
    assert [line["retries"] for line in result.history] == [0, 0 if (how, fuse) == ("nan", 4) else 1, 0]
    if together == [3]:
        weightless = simulate(**WEIGHTLESS, fuse=fuse)
        assert result.model_sha256 == weightless.model_sha256


@pytest.mark.parametrize("how", ["sum", "each", "rows"])
class TestAWrongShape:
    """Only together can shapes be told right from wrong, and blame must not depend on who added what to what."""

    @pytest.mark.parametrize(("workers", "fuse"), [(1, 1), (3, 1), (2, 4)])
    def test_it_is_left_out_and_named(self, how, workers, fuse):
        runner, events = watched(InProcess(workers))
        settings = {"on_client_error": "skip", "client_retries": 1, "doomed.how": how, "fuse": fuse}
        result = simulate(runner=runner, **DOOMED, **settings)
        assert [details["client"] for kind, details in events if kind == "client_skipped"] == [3]
        told = [details["text"] for kind, details in events if kind == "client_failed"]
        assert len(told) == 2
        assert all("client 3 failed in round 2" in text and "doomed thing" in text for text in told)
        assert [line.get("skipped", 0) for line in result.history] == [0, 1, 0]
        assert [(line["failures"], line["retries"]) for line in result.history] == [(0, 0), (2, 1), (0, 0)]
        weightless = simulate(**WEIGHTLESS, fuse=fuse)
        assert result.model_sha256 == weightless.model_sha256

    def test_it_stops_the_run(self, how):
        for settings in ({}, {"on_client_error": "stop"}):
            with pytest.raises(ClientFailure, match=r"client 3 failed in round 2 .*doomed thing.* has shape"):
                simulate(runner=InProcess(2), **DOOMED, **{"doomed.how": how}, **settings)

    def test_once_only_it_changes_nothing(self, tmp_path, how):
        result = simulate(runner=InProcess(2), **DOOMED, **{"doomed.how": how}, **fuses(tmp_path, 1))
        assert [line["failures"] for line in result.history] == [0, 1, 0]
        assert comparable(result) == comparable(simulate(**DOOMED, **{"doomed.how": how, "doomed.client": 10}))


def test_nobody_left_keeps_the_model():
    result = simulate(
        **DOOMED | {"clients": 4, "active": 1, "rounds": 8}, on_client_error="skip", **{"doomed.how": "raises"}
    )
    assert all(line["train_loss"] is not None or line["skipped"] == 1 for line in result.history)


class TestTheModelAfterAFailedClient:
    """Whoever comes next on the actor finds the model as before, so that the number of actors decides nothing."""

    def results(self, **settings):
        """Those of 1, 2 and 3 workers, of a model with batch-norm."""
        settings |= {
            "model": "fedpa-cnn", "on_client_error": "skip", "client_retries": 0, "rounds": 2, "active": 10,
            "hfmds.every": 1, "hfmds.steps": 2, "hfmds.per_client": 5,
        }  # fmt: skip
        found = [simulate(blobs(shape=(1, 16, 16)), InProcess(n), **settings) for n in (1, 2, 3)]
        assert [line.get("skipped", 0) for line in found[0].history] == [1, 0]
        return [comparable(result) for result in found]

    def test_it_is_in_evaluation_mode(self):
        doomed = {"doomed.how": "raises", "doomed.client": 8, "doomed.round": 1}
        one, two, three = self.results(method="hfmds+tests.parts.doomed", **doomed)
        assert one == two == three

    def test_it_is_not_frozen(self, monkeypatch):
        """A synthesis freezes the model; that of client 8 fails in the first round."""
        at, reply, optimise = [], HFMDS.reply, synthesis.optimise_images

        def watched_reply(self, clients):
            at.append((clients[0].t, clients[0].id))
            return reply(self, clients)

        def doomed_optimise(*arguments):
            if at[-1] == (1, 8):
                raise ValueError("this synthesis is doomed")
            return optimise(*arguments)

        monkeypatch.setattr(HFMDS, "reply", watched_reply)
        monkeypatch.setattr(synthesis, "optimise_images", doomed_optimise)
        one, two, three = self.results(method="hfmds")
        assert one == two == three


@pytest.mark.usefixtures("local_ray")
class TestOnRay:
    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["stops", "hangs"])
    def test_an_actor_that_hangs_is_replaced_and_nothing_changes(self, tmp_path, how):
        """An endless loop, and a stopped process."""
        settings = {"doomed.how": how, "client_timeout": 15} | fuses(tmp_path, 1)
        result = simulate_on_ray(**DOOMED, **settings, actors=2)
        assert comparable(result) == comparable(simulate(**ALL))
        assert result.history[1]["failures"] >= 1  # more where the machine is so busy that others seem to hang

    @pytest.mark.parametrize("how", ["raises", "sum"])
    def test_left_out_on_actors_too(self, how):
        settings = DOOMED | {"on_client_error": "skip", "doomed.how": how}
        assert comparable(simulate_on_ray(**settings, actors=3)) == comparable(simulate(**settings))

    def test_without_memory_fewer_actors_go_on(self, tmp_path):
        """As a GPU raises it; what Ray does where a node has none left is in test_chaos.py."""
        settings, events = {"doomed.how": "memory"} | fuses(tmp_path, 2), []  # it is tried once more where it is
        result = simulate_on_ray(**DOOMED, **settings, actors=3, on_event=told_to(events))
        assert comparable(result) == comparable(simulate(**ALL))
        assert [line["failures"] for line in result.history] == [0, 1, 0]
        assert [kind for kind, _ in events] == ["actor_lost", "actor_given_up"]
        assert "no room on this GPU" in events[0][1]["reason"]

    @pytest.mark.slow
    def test_the_last_actor_tries_again_and_then_the_run_stops(self, tmp_path):
        settings, events = {"doomed.how": "memory"} | fuses(tmp_path, 9), []
        with pytest.raises(RunFailure, match=r"client 3 took its actor down 4 times"):
            simulate_on_ray(**DOOMED, **settings, actors=2, on_event=told_to(events))
        assert [kind for kind, _ in events] == ["actor_lost", "actor_given_up", *["actor_lost", "actor_back"] * 2]
        assert len(list(tmp_path.iterdir())) == 1  # each of the four actors tried twice
