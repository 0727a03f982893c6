"""What a round reports: made from reports by hand, and the same after a way through its line."""

import json

import pytest

from raysim.engine.failures import FaultCount
from raysim.engine.messages import ClientReport, Reports
from raysim.engine.round_metrics import RoundMetrics

REPORTS = Reports.of([
    ClientReport(0, samples=10, terms={"ce": 1.0, "fedprox": 0.5}, bytes_up=100, flops=3e9),
    ClientReport(1, samples=30, terms={"ce": 2.0}, bytes_up=50),
    ClientReport(2, skipped=True),
])  # fmt: skip


def test_training_is_a_mean_by_samples_over_those_not_skipped():
    metrics = RoundMetrics(4, clients=3)
    metrics.count_pass(REPORTS)
    metrics.count_training(REPORTS)
    metrics.count_operations(REPORTS, samples=20.0)
    assert metrics.bytes_up == 150
    assert metrics.train_loss == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert metrics.terms == {"fedprox": pytest.approx(10 * 0.5 / 40)}
    assert metrics.gflops == {"training": pytest.approx(3 * 20 / 10)}


def test_the_memory_of_a_gpu_is_the_most_of_any_actor_and_on_cpus_says_nothing():
    metrics = RoundMetrics(4)
    metrics.count_pass(REPORTS)
    assert "gpu_bytes" not in metrics.to_line()
    metrics.count_pass(Reports.of([ClientReport(0, gpu_bytes=5), ClientReport(1, gpu_bytes=9)]))
    metrics.count_pass(Reports.of([ClientReport(0, gpu_bytes=6)]))
    assert metrics.to_line()["gpu_bytes"] == 9
    assert RoundMetrics.from_line(metrics.to_line()).gpu_bytes == 9


def test_a_fixed_number_of_steps_is_not_scaled_and_nothing_counted_says_nothing():
    metrics = RoundMetrics(4)
    metrics.count_operations(REPORTS, samples=None)
    assert metrics.gflops == {"training": 3.0}
    metrics = RoundMetrics(4)
    metrics.count_training(Reports.of([ClientReport(2, skipped=True)]))
    assert (metrics.train_loss, metrics.terms, metrics.gflops) == (None, {}, {})


def test_exchanges_of_a_part_add_up():
    metrics = RoundMetrics(1)
    for _ in range(2):
        metrics.count_exchange("hfmds", REPORTS)
    assert metrics.gflops == {"hfmds": 6.0}


def test_evaluation_is_exact_and_a_loss_that_is_not_finite_is_none():
    metrics = RoundMetrics(1)
    metrics.count_evaluation([(3, 2**20), (4, 2**21)], images=10)
    assert (metrics.accuracy, metrics.loss) == (0.7, pytest.approx(0.3))
    metrics.count_evaluation([(3, 2**20), (4, None)], images=10)
    assert (metrics.accuracy, metrics.loss) == (0.7, None)


def test_times_and_faults():
    metrics = RoundMetrics(1)
    metrics.count_time([("", 10.0), ("training", 12.5), ("evaluation", 13.0)])
    assert (metrics.phases, metrics.seconds) == ({"training": 2.5, "evaluation": 0.5}, 3.0)
    metrics.count_faults(FaultCount(2, 5), FaultCount(3, 9))
    assert (metrics.failures, metrics.retries) == (1, 4)


def test_a_line_and_back():
    metrics = RoundMetrics(2, accuracy=0.5, clients=4, reported={"psnr": 9.8, "hfmds.psnr": 9.8}, skipped=1)
    line = json.loads(json.dumps(metrics.to_line()))
    assert line["format"] == 1
    assert (line["psnr"], line["skipped"]) == (9.8, 1)
    assert RoundMetrics.from_line(line) == metrics
    assert dict(metrics) == line
    assert "skipped" not in RoundMetrics(2).to_line()
