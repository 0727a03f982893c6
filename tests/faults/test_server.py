"""The server dies and the run goes on from its last checkpoint: same models, same metrics, same synthetic data."""

import pytest

from raysim.data.synthetic_tables import table_digest
from raysim.engine.failures import ServerLost
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints
from tests.simulate import SYNTHESIS, comparable, simulate, simulate_on_ray

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

    def test_a_round_that_always_kills_it_ends_the_run(self, tmp_path):
        with pytest.raises(ServerLost, match="the server actor was lost"):
            simulate_on_ray(method="tests.parts.doomed", actors=1, saver=saver_in(tmp_path), **{"doomed.server": True})
