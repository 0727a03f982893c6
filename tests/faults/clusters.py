"""Chaos: nodes, the head, the network, the object store and the memory fail the run."""

import json
import time

import psutil

from tests.faults.harness import GRACE, REAPED, SMALL, Lab, Outcome, crash, descendants, events, told

MEAL_MB = 2000  # memory a client of `memory` takes


def nodes(lab: Lab, rounds: int = 20) -> Outcome:
    """Of three nodes one is lost with the clients' states it held; later another joins."""
    settings = [*REAPED, "--method", "tests.parts.reaper+fedpa+tests.parts.sleepy", "--rounds", rounds]
    settings += ["--reaper.ballast", 40_000]  # 160 kB: too large to travel with the answer
    out, outcome = lab.folder / "run", Outcome("1 node, then 1 more")
    with lab.cluster("--num-cpus", "1") as (address, _):
        others = []
        for there in (2, 3):  # one after the other: Ray would give both the same socket
            others.append(lab.node("--address", address, "--num-cpus", "1"))
            lab.wait_ready(address, nodes=there)
        process = lab.start("run", *settings, "--actors", 3, "--sleepy.most", 0.5, "--out", out, address=address)
        lab.until(process, lambda: told(out) >= 3)
        # Titles of actors change with what they are at; these are not actors.
        doomed = next(node for node in others if descendants(node, r"ray::(?!IDLE|\w*Agent)"))
        reached = told(out) + 1
        killed = crash(descendants(doomed, r"raylet/raylet ")[0])
        lab.until(process, lambda: bool(events(out, "node_lost")))
        lab.until(process, lambda: told(out) > reached)
        lab.node("--address", address, "--num-cpus", "1")
        lab.finish(outcome, process)
    outcome.add(out)
    outcome.recoveries += [event["time"] - killed for event in events(out, "node_lost")]
    outcome.rounds += sum(reached - event["round"] for event in events(out, "server_back"))
    for kind in ("node_lost", "node_joined"):
        if not events(out, kind):
            outcome.problems.append(f"no {kind} event")
    outcome.compare(out, lab.undisturbed(*settings, "--sleepy.most", 0))
    return outcome


def rpc(lab: Lab, tries: int = 3) -> Outcome:
    """Ray loses 5 % of all its calls or their answers: the run ends in its hash or with an error, and never hangs."""
    shares = {"num_failures": -1, "req_failure_prob": 2, "resp_failure_prob": 2, "in_flight_failure_prob": 1}
    settings, lost, told_of = [*REAPED, "--rounds", 6], 0, []
    outcome, undisturbed = Outcome(""), lab.undisturbed(*settings)
    for i in range(tries):
        out, log = lab.folder / f"run-{i}", f"log-{i}"
        words = ["run", *settings, "--actors", 2, "--watchdog", 60, "--out", out]
        code = lab.wait(lab.start(*words, log=log, RAY_testing_rpc_failure=json.dumps({"*": shares})), 400)
        lost += len(events(out, "actor_lost", "server_lost"))
        outcome.rounds += len(events(out, "server_back"))  # each does the round again that it was lost in
        outcome.add(out)
        if code == 0:
            outcome.compare(out, undisturbed)
        elif code == 1 and lab.said(log)[-1].startswith("raysim: "):
            told_of.append(lab.said(log)[-1])
        else:
            outcome.problems.append(f"try {i}: {'hangs' if code is None else f'exit code {code}'}: {lab.said(log)[-1]}")
    outcome.faults = f"5 % of calls, {tries} runs: {lost} actors lost, {len(told_of)} stopped with an error"
    outcome.equal = f"{tries - len(told_of)} of {tries}, the others say why they stopped" if told_of else "yes"
    outcome.remarks += told_of
    return outcome


def head(lab: Lab) -> Outcome:
    """The head is lost, GCS and raylet at once: the run ends with an error, and is resumed on another cluster."""
    settings, out, outcome = [*REAPED, "--rounds", 30], lab.folder / "run", Outcome(1)
    with lab.cluster("--num-cpus", "2", stays=False) as (address, node):
        process = lab.start("run", *settings, "--actors", 2, "--out", out, address=address)
        lab.until(process, lambda: told(out) >= 3)
        lab.remember()
        before = told(out)
        for part in descendants(node, r"gcs_server |raylet/raylet "):
            killed = crash(part)
        code = lab.wait(process, GRACE)
        while not (last := lab.said()[-1]).startswith("raysim: ") and time.time() - killed < GRACE:
            time.sleep(0.1)  # where Ray ended the run, its reaper says why
        took = time.time() - killed
        if code != 1 or not last.startswith("raysim: "):
            outcome.problems.append(f"exit code {code} after {took:.0f} s: {last}")
        outcome.remarks.append(f"after {took:.1f} s: {last}")
    with lab.cluster("--num-cpus", "2") as (address, _):
        began = time.time()
        lab.finish(outcome, lab.start("resume", out, address=address))
        outcome.add_resumed(out, before, began)
    outcome.recoveries = [took + seconds for seconds in outcome.recoveries]
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def memory(lab: Lab, rounds: int = 3) -> Outcome:
    """Two clients at once are more than the node's memory: Ray kills an actor, and the run goes on with one less."""
    settings = [*SMALL, "--method", "tests.parts.hungry", "--rounds", rounds]
    out, outcome = lab.folder / "run", Outcome("")
    there = psutil.virtual_memory()
    # What is in use, Ray with its actors, and one and a half meals.
    most = (there.total - there.available) / 2**20 + 1500 + 1.5 * MEAL_MB
    if most > 0.95 * there.total / 2**20:
        raise RuntimeError(f"this machine has too little free memory: {there.available >> 20} MB")
    share = f"{most * 2**20 / there.total:.4f}"
    with lab.cluster("--num-cpus", "2", RAY_memory_usage_threshold=share) as (address, _):
        hungry = ["--hungry.megabytes", MEAL_MB, "--actors", 2, "--out", out]
        lab.finish(outcome, lab.start("run", *settings, *hungry, address=address))
    killed = events(out, "actor_given_up")
    outcome.faults = f"{len(killed)} killed for want of memory"
    if len(killed) != 1 or "out of memory" not in killed[0]["reason"]:
        outcome.problems.append(f"{outcome.faults}, not one: {killed}")
    outcome.add(out)
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def store(lab: Lab) -> Outcome:
    """An object store of 80 MB for 154 MB of data: the rest is spilled to the disk."""
    settings = ["--model", "small-cnn", "--train-size", 50_000, "--test-size", 500, "--active", 2, "--rounds", 1]
    out, spilled, outcome = lab.folder / "run", lab.folder / "spilled", Outcome("80 MB for 154 MB")
    spilled.mkdir()
    room = ["--object-store-memory", str(80 * 2**20), "--object-spilling-directory", str(spilled)]
    with lab.cluster("--num-cpus", "2", *room) as (address, _):
        process = lab.start("run", *settings, "--actors", 2, "--out", out, address=address)
        lab.until(process, lambda: any(file.is_file() for file in spilled.rglob("*")))
        if process.poll() is not None:
            outcome.problems.append("nothing was spilled")
        lab.finish(outcome, process)
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome
