"""What a configuration knows about its settings."""

from raysim.config import RunConfig, resolve

OPERATIONAL = {
    "data", "download", "actors", "actors_per_gpu", "gpu_type", "actor_per_client", "gpu_fraction", "in_process",
    "tsne", "privacy", "measures", "feature_kl", "metrics", "callback", "track", "profile", "client_timeout",
    "watchdog", "checkpoint_every", "resume", "out", "overwrite",
}  # fmt: skip


def test_settings_that_decide_the_result_are_its_identity():
    config = resolve([("test", {"method": "fedprox", "fedprox.mu": 0.5})])
    assert {*RunConfig.operational()} == OPERATIONAL
    assert config.settings().keys() - config.identity().keys() == OPERATIONAL | {*RunConfig.LENGTH}
    assert config.identity()["fedprox.mu"] == 0.5


def test_the_number_of_rounds_is_part_of_it_where_a_part_goes_by_it():
    config = resolve([("test", {"method": "feddpms", "model": "feddpms-vae"})])
    assert config.identity()["rounds"] == 50


def test_the_learning_rate_decays():
    config = resolve([("test", {"lr": 1.0, "lr_decay": 0.5, "lr_decay_every": 2})])
    assert [config.learning_rate(t) for t in range(1, 6)] == [1.0, 1.0, 0.5, 0.5, 0.25]
