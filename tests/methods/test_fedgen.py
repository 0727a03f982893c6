"""FedGen is FedPA without prototypes and with diversity over all pairs; its parts are tested in test_fedpa.py."""

import pytest

from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.fedgen import FedGen
from tests.simulate import comparable, configure, simulate

QUICK = {"method": "fedgen", "fedgen.gen_steps": 5}


def test_it_is_fedpa_with_these_settings(monkeypatch):
    fedpa = {"method": "fedpa", "fedpa.gen_steps": 5}
    fedpa |= {"fedpa.lambda_po": 0, "fedpa.gamma_ad": 0, "fedpa.pairs": "all"}
    expected = comparable(simulate(**fedpa))
    own = comparable(simulate(**QUICK))
    monkeypatch.setattr(FedGen, "name", "fedpa")  # the name of its random streams
    assert comparable(simulate(**QUICK)) == expected
    assert own != expected


def test_the_server_has_a_generator_and_no_prototypes():
    runner = InProcess()
    history = simulate(runner=runner, **QUICK).history
    assert runner.server.state["fedgen"].keys() == {"generator", "adam", "counts"}
    assert [sorted(line["terms"]) for line in history] == [[], ["fedgen"], ["fedgen"]]


def test_what_makes_it_fedgen_is_no_setting():
    for key in ("lambda_po", "gamma_ad", "ad_reach", "pairs"):
        with pytest.raises(InputError, match=rf"unknown setting --fedgen.{key.replace('_', '-')}"):
            configure(**{"method": "fedgen", f"fedgen.{key}": 1})
