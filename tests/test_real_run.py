"""One real run in the quick tier: on Ray with 4 actors and with 1, a client actor and the driver killed, resumed."""

from tests.faults.harness import REAPED, Lab, events, results, told


def test_a_run_that_loses_an_actor_and_its_driver_ends_as_if_nothing_had_happened(tmp_path):
    lab = Lab(tmp_path)
    words = [*REAPED, "--rounds", 5]
    out = tmp_path / "run"
    try:
        undisturbed = lab.undisturbed(*words)
        fuses = lab.light(["training-2-3"])  # round 2, client 3: its actor
        process = lab.start("run", *words, "--reaper.fuses", fuses, "--actors", 4, "--out", out)
        assert lab.until(process, lambda: told(out) >= 3), lab.said()[-3:]
        process.kill()
        process.wait()
        assert lab.wait(lab.start("resume", out, "--actors", 1)) == 0, lab.said()[-3:]
        assert [event["clients"] > 0 for event in events(out, "actor_lost")] == [True]
        assert results(out) == results(undisturbed)
    finally:
        left = lab.close()
    assert not left
