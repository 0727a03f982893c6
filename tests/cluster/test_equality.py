"""One configuration, one hash: whatever the actors, the order of arrival, or deaths (nodes: test_nodes.py)."""

import pytest
import ray

from raysim.engine import simulation
from raysim.engine.failures import ClientFailure, RunFailure
from raysim.engine.in_process import InProcess
from raysim.engine.work_queue import spans
from tests.simulate import SYNTHESIS, comparable, simulate, simulate_on_ray

EVERYTHING = "tests.parts.everything"  # all hooks at once


@pytest.fixture(scope="module")
def reference():
    """The undisturbed run of each method, in this process."""
    return {method: comparable(simulate(method=method)) for method in ("fedavg", EVERYTHING, "tests.parts.committee")}


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("method", ["fedavg", EVERYTHING, "tests.parts.committee"])
def test_in_process_with_several_workers(reference, method, workers):
    assert comparable(simulate(method=method, runner=InProcess(workers))) == reference[method]


@pytest.mark.usefixtures("local_ray")
class TestOnOneNode:
    @pytest.mark.parametrize("actors", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
    def test_actors(self, reference, actors):
        assert comparable(simulate_on_ray(method=EVERYTHING, actors=actors)) == reference[EVERYTHING]

    def test_several_models(self, reference):
        method = "tests.parts.committee"
        assert comparable(simulate_on_ray(method=method, actors=2)) == reference[method]

    @pytest.mark.parametrize("actors", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 4])
    def test_shared_synthetic_data_and_the_generator(self, actors):
        assert comparable(simulate_on_ray(actors=actors, **SYNTHESIS)) == comparable(simulate(**SYNTHESIS))

    @pytest.mark.slow
    def test_actor_per_client(self, reference):
        assert comparable(simulate_on_ray(actor_per_client=True)) == reference["fedavg"]

    @pytest.mark.slow
    def test_answers_in_any_order(self, reference):
        method = f"{EVERYTHING}+tests.parts.sleepy"
        assert comparable(simulate_on_ray(method=method, actors=3)) == reference[EVERYTHING]

    def test_killed_actors(self, reference, tmp_path, monkeypatch):
        """Client 3 takes its actor down twice in round 2; its work and what the actor had summed is done again."""
        told = []  # who worked when, round by round
        monkeypatch.setattr(simulation, "spans", lambda calls, origin: told.append(spans(calls, origin)))
        for fuse in "ab":
            (tmp_path / fuse).touch()
        active = {"active": 10}
        undisturbed = comparable(simulate(method=EVERYTHING, **active))
        seen = []  # names of actors, after each round
        killed = simulate_on_ray(
            method=f"{EVERYTHING}+tests.parts.doomed", actors=2, **active, **{"doomed.fuses": str(tmp_path)},
            on_round=lambda line: seen.append(ray.util.list_named_actors(all_namespaces=True)),
        )  # fmt: skip
        assert not list(tmp_path.iterdir())
        assert [line["failures"] for line in killed.history] == [0, 2, 0]
        assert [line["retries"] > 0 for line in killed.history] == [False, True, False]
        (namespace,) = {actor["namespace"] for actor in seen[0]}
        assert namespace.startswith("raysim/run/")
        first, *_, last = [{actor["name"] for actor in actors} for actors in seen]
        assert first == {"server gpu 0.1", "client-actor-0 gpu 0.9", "client-actor-1 gpu 0.9"}
        assert any(" · start " in name for name in last)
        assert comparable(killed) == undisturbed
        assert [len(each.get("lost", [])) for each in told[-3:]] == [0, 2, 0]
        for each in told[-3:]:
            assert {actor for actor, _, _ in each["training"]} <= {0, 1}
            assert all(0 <= start <= stop for phase in each.values() for _, start, stop in phase)

    def test_a_client_that_always_kills_its_actor_ends_the_run(self, tmp_path):
        for i in range(20):
            (tmp_path / str(i)).touch()
        with pytest.raises(RunFailure, match=r"client 3 took its actor down 4 times"):
            simulate_on_ray(method="tests.parts.doomed", actors=1, active=10, **{"doomed.fuses": str(tmp_path)})

    def test_a_client_that_raises_ends_the_run_with_its_own_traceback(self):
        with pytest.raises(ClientFailure, match=r"client 3 failed in round 2 .*this client is doomed") as caught:
            simulate_on_ray(method="tests.parts.doomed", actors=2, active=10, **{"doomed.how": "raises"})
        assert "doomed.py" in caught.value.traceback

    @pytest.mark.slow
    def test_nothing_stays_reserved(self):
        simulate_on_ray(actors=2, rounds=1)
        total, free = ray.cluster_resources(), {}
        for _ in range(50):
            free = ray.available_resources()
            if free.get("CPU") == total["CPU"] and free.get("GPU") == total["GPU"]:
                break
            ray.wait([ray.remote(num_cpus=0)(lambda: None).remote()])
        assert (free["CPU"], free["GPU"]) == (total["CPU"], total["GPU"])


def test_an_update_that_is_not_finite_names_client_and_round():
    with pytest.raises(ClientFailure, match=r"client 3 failed in round 2 .*holds nan.*--lr"):
        simulate(method="tests.parts.doomed", active=10, **{"doomed.how": "nan"})
