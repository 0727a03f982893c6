"""The other benchmarks run and print their tables."""

import pytest

from benchmarks import balance, checkpoint, cluster_model, driver, flute, metrics, nodes, scaling, synthesis

IN_PROCESS = ["--set", "in_process=true"]  # Ray is in test_compare.py


@pytest.mark.slow
def test_synthesis_makes_the_same_images_as_the_script(capsys):
    sizes = ["--clients", "4", "--samples", "40", "--active", "2", "--steps", "3", "--per-client", "10"]
    synthesis.main([*sizes, "--syntheses", "1", "--repeats", "1", "--groups", "1", *IN_PROCESS])
    printed = capsys.readouterr().out
    assert "| script |" in printed
    assert "| raysim |" in printed
    assert float(printed.split("differ by ")[1].split()[0]) < 1e-5
    # The same mathematics with other draws: after four rounds of few steps the losses are close.
    terms = [line.split("|")[-2] for line in printed.splitlines() if line.startswith(("| script", "| raysim"))][-2:]
    script, ours = ({part.split()[0]: float(part.split()[1]) for part in line.split(",")} for line in terms)
    assert script.keys() == ours.keys()
    for name, value in script.items():
        assert abs(ours[name] - value) < 0.3 * value, name


def test_flutes_task_is_timed_from_start_to_end():
    small = {"dataset": "shapes", "train_size": 400, "test_size": 100, "clients": 40, "rounds": 3}
    whole, median, accuracy = flute.measure(in_process=True, **small)
    assert 0 < 3 * median < whole
    assert 0 < accuracy < 1


CHECKPOINT = ["--clients", "4", "--samples", "20", "--active", "2", "--per-client", "5", "--repeats", "1"]


def test_a_checkpoint_is_written_and_read(capsys):
    checkpoint.main([*CHECKPOINT, "--large", "mlp", "--rounds", "0"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| hfmds+fedpa, ")]
    first, later, read = (float(row[1]) for row in rows)
    assert 0 < later < first  # the images and two of the states are not written again
    assert read == first


@pytest.mark.slow
def test_rounds_with_checkpoints_beside_rounds_without(capsys):
    checkpoint.main([*CHECKPOINT, "--large", "mlp", "--rounds", "2", *IN_PROCESS])
    printed = capsys.readouterr().out
    assert "| without |" in printed
    assert "| a checkpoint after every round |" in printed


@pytest.mark.slow
def test_scaling_by_model_phases_and_sums(capsys):
    sizes = ["--rounds", "2", "--models", "mlp", "--samples", "10", "--steps", "2", "--vectors", "1000"]
    scaling.main(["--only", "models", "phases", "sums", *sizes, "--repeats", "2", *IN_PROCESS])
    printed = capsys.readouterr().out
    assert "| mlp | 0.20 M |" in printed
    assert all(f"| {phase} |" in printed for phase in ("synthesis (hfmds)", "local training", "server and driver"))
    assert "| 1,000 |" in printed


@pytest.mark.slow
def test_scaling_by_clients(capsys):
    scaling.main(["--only", "clients", "--rounds", "1", "--clients", "5", "--samples", "10", *IN_PROCESS])
    assert "| 5 |" in capsys.readouterr().out


def test_the_model_of_clusters_has_a_line_per_federation_and_cluster(capsys):
    cluster_model.main(["--measure", "w3", "--active", "2"])
    rows = [line for line in capsys.readouterr().out.splitlines() if " | " in line]
    assert len(rows) == 2 + len(cluster_model.FEDERATIONS) * len(cluster_model.GPUS)


def test_calls_are_counted_as_raysims_queue_hands_them_out():
    from raysim.engine.work_queue import WorkQueue, in_groups

    for clients, actors in ((1, 1), (10, 4), (1_000, 16), (1_003, 7)):
        queue = WorkQueue(in_groups(list(range(clients)), 1), [1.0] * clients)
        calls = 0
        while queue:
            queue.take(1 / actors)
            calls += 1
        assert cluster_model.calls_of(clients, actors) == calls
    assert cluster_model.calls_of(10_000, 1_000, client_seconds=0.0001) == 1_000


def test_the_driver_with_pretended_actors_sends_the_server_one_sum_and_one_list_of_uploads_per_node():
    small = ["--clients", "2000", "--active", "500", "--nodes", "8", "--per-node", "4", "--rounds", "1"]
    found = driver.measure(driver.parsed(small))
    assert (found["actors"], found["sums"], found["uploads"]) == (32, 8, 0)
    assert found["calls"]["collect"] == 32
    assert found["calls"]["add"] == 8
    assert 0 < found["seconds"][0] < 5
    found = driver.measure(driver.parsed([*small, "--states"]))
    assert (found["sums"], found["uploads"]) == (8, 8)
    many = ["--nodes", "130", "--per-node", "2", "--states"]  # more than 64: put together once more
    found = driver.measure(driver.parsed([*small, *many]))
    assert (found["sums"], found["uploads"]) == (3, 3)


@pytest.mark.parametrize("clients", [40, 200])
def test_unequal_clients_on_mixed_actors_finish_together_once_their_costs_are_learned(clients):
    """Sizes by Dirichlet 0.3; half of the actors are slow, and the first to be given work before it is known."""
    asked = balance.parsed([])
    found = balance.rounds([0.2, 0.2, 0.5, 0.5, 1, 1, 1, 1], balance.drawn(clients, asked), asked)
    (before, idle_before), *_, (learned, idle) = found
    if clients == 40:  # the largest of which takes as long as the others' shares; 200 are spread evenly at once
        assert (learned, idle) < (before, idle_before)
    assert learned < (1.05 if clients == 200 else 1.2)


def test_a_table_of_unequal_clients(capsys):
    balance.main(["--clients", "20", "--rounds", "2"])
    assert "| mixed actors, 20 clients | 2 | " in capsys.readouterr().out


@pytest.mark.slow
def test_the_driver_on_ray(capsys):
    driver.main(["--clients", "100", "--active", "50", "--ray", "3", "--rounds", "1"])
    assert "| 3 on Ray | 50 |" in capsys.readouterr().out


@pytest.mark.slow
def test_strong_and_weak_scaling_over_nodes(capsys):
    nodes.main(["--nodes", "1", "2", "--active", "4", "--samples", "10", "--rounds", "1"])
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 | ")]


def test_more_gpus_shorten_the_work_only():
    few, many = (cluster_model.terms(cluster_model.Rates(), gpus, 10_000) for gpus in (8, 512))
    assert many["work"] < few["work"]
    assert many["server"] > few["server"]
    assert few["nodes"] == 0.0  # there is one
    assert many["nodes"] == pytest.approx(2 * 3.5 * 16 / 2_000)


@pytest.mark.slow
def test_rounds_with_metrics_beside_rounds_without(capsys):
    metrics.main(["--pairs", "2", "--rounds", "1", "--clients", "2", "--samples", "10"])
    printed = capsys.readouterr().out
    assert "| with |" in printed
    assert "| without |" in printed


def test_the_interval_of_a_mean():
    mean, half = metrics.interval([1.0, 2.0, 3.0, 2.0])
    assert mean == 2.0
    assert half == pytest.approx(3.1824 * (2 / 3) ** 0.5 / 2, rel=1e-4)  # t of 3 degrees of freedom
