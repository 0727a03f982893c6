"""The other benchmarks run and print their tables."""

import pytest

from benchmarks import checkpoint, cluster_model, metrics, scaling, synthesis

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
        queue = WorkQueue(in_groups(list(range(clients)), 1), [1.0] * clients, actors)
        calls = 0
        while queue:
            queue.take()
            calls += 1
        assert cluster_model.calls_of(clients, actors) == calls


def test_more_gpus_shorten_the_work_only():
    few, many = (cluster_model.terms(cluster_model.Rates(), gpus, 10_000) for gpus in (8, 512))
    assert many["work"] < few["work"]
    assert many["server"] > few["server"]


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
