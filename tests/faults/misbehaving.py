"""Chaos: clients whose own code goes wrong."""

import json

from tests.faults.harness import CLIENTS, REAPED, SMALL, Lab, Outcome, events


def flaky(lab: Lab, rounds: int = 15, clients: int = 6) -> Outcome:
    """A tenth of all calls raises, a tenth crashes, by a fixed table: each is retried once, no more and no less."""
    settings = [*REAPED, "--clients", clients, "--rounds", rounds]
    calls = [f"{t}-{k}" for t in range(1, rounds + 1) for k in range(clients)]
    tenth = max(1, len(calls) // 10)
    drawn = lab.draw.sample(calls, 2 * tenth)
    raising, crashing = drawn[:tenth], drawn[tenth:]
    fuses = lab.light([f"raise-{at}" for at in raising] + [f"crash-{at}" for at in crashing])
    out, outcome = lab.folder / "run", Outcome(f"{len(raising)} raised, {len(crashing)} crashed")
    lab.finish(outcome, lab.start("run", *settings, "--actor-per-client", "--reaper.fuses", fuses, "--out", out))
    counted = [len(events(out, "client_failed")), len(events(out, "actor_lost"))]
    if counted != [len(raising), len(crashing)]:
        outcome.problems.append(f"client_failed and actor_lost {counted}, not {[len(raising), len(crashing)]}")
    failures = sum(json.loads(line)["failures"] for line in (out / "metrics.jsonl").read_text().splitlines())
    if failures != len(raising) + len(crashing):
        outcome.problems.append(f"{failures} failures in metrics.jsonl")
    outcome.add(out)
    outcome.clients += len(raising)
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def hangs(lab: Lab) -> Outcome:
    """A client that loops for ever and one whose process is stopped: --client-timeout replaces their actor."""
    settings = [*SMALL, "--method", "tests.parts.doomed", "--rounds", 3]
    outcome = Outcome(2)
    undisturbed = lab.undisturbed(*settings, "--doomed.client", CLIENTS)  # nobody
    for how in ("hangs", "stops"):
        out, fuses = lab.folder / how, lab.light([how])
        doom = ["--doomed.how", how, "--doomed.fuses", fuses, "--client-timeout", 15]
        lab.finish(outcome, lab.start("run", *settings, *doom, "--actors", 2, "--out", out))
        if len(events(out, "actor_hung")) != 1:
            outcome.problems.append(f"{how}: no actor_hung event")
        outcome.add(out)
        outcome.compare(out, undisturbed)
    return outcome


def policies(lab: Lab) -> Outcome:
    """A client that always raises, gives back NaN or a wrong shape: stop, retry and skip do as declared, by name."""
    settings = [*SMALL, "--method", "tests.parts.doomed", "--rounds", 3, "--doomed.client", 3, "--doomed.round", 2]
    outcome = Outcome(9)
    for how in ("raises", "nan", "sum"):
        for policy in ("stop", "retry", "skip"):
            out, log = lab.folder / f"{how}-{policy}", f"{how}-{policy}.log"
            words = [*settings, "--doomed.how", how, "--on-client-error", policy]
            code = lab.wait(lab.start("run", *words, "--actors", 2, "--out", out, log=log))
            named = [event for event in events(out, "stopped", "client_skipped") if named_in(event, 3, 2)]
            if len(named) != 1:
                outcome.problems.append(f"{out.name}: client 3 of round 2 is not named in events.jsonl")
            if policy == "skip":
                outcome.problems += [f"{out.name}: exit code {code}"] * (code != 0)
                outcome.compare(out, lab.undisturbed(*words, name=f"undisturbed-{how}"))
            elif code != 1 or not lab.said(log)[-1].startswith("raysim: client 3 failed in round 2"):
                outcome.problems.append(f"{out.name}: exit code {code}, {lab.said(log)[-1]}")
    return outcome


def named_in(event: dict, client: int, t: int) -> bool:
    if event["event"] == "client_skipped":
        return (event["client"], event["round"]) == (client, t)
    return f"client {client} failed in round {t}" in event["text"]
