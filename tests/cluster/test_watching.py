"""A running job as its user watches it: Prometheus, the dashboard in a browser, the ports that are open.

A client of it has failed once and was tried again, so that every metric has a value.
"""

import json
import os
import re
import shutil
import subprocess
import time
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
import pytest

from cluster import ports
from raysim.observe.ray_metrics import COUNTERS, GAUGES
from tests.browser import Browser, needs_chromium
from tests.cluster.local_cluster import ROOT, call, cluster, owned
from tests.cluster.test_local import state  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow
DOCS = ROOT / "docs"
ROUND_SECONDS = 240  # until there are some, on a busy machine
JOB = [
    "--method", "hfmds+fedpa+tests.parts.doomed", "--train-size", "120", "--test-size", "40", "--clients", "6",
    "--active", "6", "--rounds", "100000", "--actors", "3", "--model", "small-cnn", "--hfmds.every", "3",
    "--hfmds.steps", "2", "--hfmds.per-client", "5", "--fedpa.gen-steps", "3", "--doomed.how", "raises",
]  # fmt: skip


@pytest.fixture(scope="module")
def watched(state):  # noqa: F811
    """A cluster of one node with two logical GPUs, and a job on it that has done some rounds."""
    folder = state.parent / "runs"  # gone with it
    with cluster(state, "--nodes", "1", "--gpus", "2", "--cpus", "2") as started:
        if not started.problem:
            started.problem = start_job(started.variables, folder)
            started.variables["folder"] = str(folder)
        yield started


def start_job(variables: dict[str, str], folder: Path) -> str:
    """Start the job and wait for its rounds; what went wrong, if anything did."""
    (folder / "fuses").mkdir(parents=True)
    (folder / "fuses" / "1").touch()
    where = ["--doomed.fuses", str(folder / "fuses"), "--out", str(folder / "watched-run")]
    submit = ["ray", "job", "submit", "--no-wait", "--", "jobs/fedavg_100clients.py"]
    done = call(*submit, *JOB, *where, **variables)
    if done.returncode != 0:
        return f"its job was not submitted: {done.stderr}"
    lines = folder / "watched-run" / "metrics.jsonl"
    until = time.monotonic() + ROUND_SECONDS
    while not lines.exists() or len(lines.read_text().splitlines()) < 4:
        job = submitted(variables)
        if job["status"] not in ("PENDING", "RUNNING") or time.monotonic() > until:
            return f"its job does no rounds: {job['status']}, {job['message']}"
        time.sleep(1)
    return ""


@pytest.fixture
def running(watched):
    """The cluster's variables, and the folder of the job's run."""
    return watched.needed()


def ask(running: dict[str, str], path: str) -> dict | list:
    """The dashboard's API."""
    token = Path(running["RAY_AUTH_TOKEN_PATH"]).read_text()
    request = Request(running["RAY_API_SERVER_ADDRESS"] + path, headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def submitted(running: dict[str, str]) -> dict:
    """Our job as the Jobs page has it."""
    (job,) = [job for job in ask(running, "/api/jobs/") if "fedavg_100clients" in job["entrypoint"]]
    return job


@pytest.fixture
def page(running):
    token = Path(running["RAY_AUTH_TOKEN_PATH"]).read_text()
    with Browser() as browser:
        yield browser.page(1500, 640, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.skipif(
    not shutil.which("prometheus"), reason="prometheus is not installed; on Debian: apt install prometheus"
)
def test_prometheus_answers_for_every_metric(running, state, tmp_path):  # noqa: F811
    """Found through Ray's own list of its nodes, with our configuration."""
    config = (ROOT / "cluster" / "monitoring" / "prometheus.yml").read_text()
    discovery = f"{state}/ray1/prom_metrics_service_discovery.json"
    (tmp_path / "prometheus.yml").write_text(config.replace("/tmp/ray/prom_metrics_service_discovery.json", discovery))
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]

    def query(metric: str) -> list[dict]:
        expression = quote(f'ray_{metric}{{run="watched-run"}}')
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={expression}", timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except OSError:  # not up yet
            return []

    with (
        ports.free(1) as (port,),
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL) as server,
    ):
        try:
            missing = {*GAUGES, *COUNTERS}
            until = time.monotonic() + 120
            while missing and time.monotonic() < until:
                time.sleep(2)
                missing = {metric for metric in missing if not query(metric)}
            found = {metric: query(metric) for metric in {*GAUGES, *COUNTERS} - missing}
        finally:
            server.terminate()
    assert not missing
    assert {series["metric"]["actor"] for series in found["raysim_actor_round"]} == {
        f"client-actor-{i}" for i in range(3)
    }
    assert {series["metric"]["term"] for series in found["raysim_term"]} == {"hfmds", "fedpa"}
    assert float(found["raysim_failures_total"][0]["value"][1]) == 1
    assert float(found["raysim_retries_total"][0]["value"][1]) == 1


@needs_chromium
def test_the_jobs_page_shows_the_job_with_its_metadata(running, page):
    page.open(running["RAY_API_SERVER_ADDRESS"] + "/#/jobs")
    page.wait_for("document.body.innerText.includes('watched-run')")
    page.screenshot(DOCS / "dashboard-jobs.png")
    page.open(f"{running['RAY_API_SERVER_ADDRESS']}/#/jobs/{submitted(running)['job_id']}")
    page.wait_for("document.body.innerText.includes('run_directory')")
    shown = page.evaluate("document.body.innerText")
    for text in (
        '"job_name": "watched-run"', '"method": "hfmds+fedpa+tests.parts.doomed"', '"dataset": "shapes"',
        '"clients": "6"', '"rounds": "100000"', f'"run_directory": "{running["folder"]}/watched-run"',
        '"plan": "3 client actors',
    ):  # fmt: skip
        assert text in shown
    expand = "[...document.querySelectorAll('a, button, span')].filter(e => e.innerText == 'Expand').pop()"
    page.evaluate(f"{expand}.click()")
    page.wait_for("document.querySelector('[role=dialog]')")
    time.sleep(1)  # it fades in
    page.screenshot(DOCS / "dashboard-job.png")


@needs_chromium
def test_the_actors_page_shows_the_actors_by_name(running, page):
    page.open(running["RAY_API_SERVER_ADDRESS"] + "/#/actors")
    page.wait_for("document.body.innerText.includes('client-actor-2 gpu 0.45')")
    shown = page.evaluate("document.body.innerText")
    for name in ("server gpu 0.1", *(f"client-actor-{i} gpu 0.45" for i in range(3))):
        assert shown.count(name) == 2  # columns Name and Repr
    page.evaluate("document.querySelector('table').scrollIntoView(); scrollBy(0, -80)")
    page.screenshot(DOCS / "dashboard-actors.png")


def test_a_failed_clients_traceback_is_in_its_actors_log(running):
    actors = ask(running, "/api/v0/actors?detail=1")["data"]["result"]["result"]
    ours = {actor["name"]: actor["actor_id"] for actor in actors if actor["class_name"] == "ClientActor"}
    token = Path(running["RAY_AUTH_TOKEN_PATH"]).read_text()
    logs = ""
    for actor in ours.values():
        path = f"/api/v0/logs/file?actor_id={actor}&suffix=err&lines=1000&format=text"
        request = Request(running["RAY_API_SERVER_ADDRESS"] + path, headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=30) as answer:
            logs += answer.read().decode()
    assert "client 3 failed in round 2 (hfmds+fedpa+tests.parts.doomed): ValueError: this client is doomed" in logs
    assert 'raise ValueError("this client is doomed")' in logs


def kind_of(process: psutil.Process) -> str:
    """What docs/dashboard.md calls it."""
    words = " ".join(process.cmdline())
    for part, kind in (
        ("ray-dashboard-", "dashboard module"), ("gcs_server", "GCS"), ("raylet/raylet", "raylet"),
        ("ray.util.client.server", "client server"),
        ("dashboard/dashboard.py", "dashboard"), ("ray::DashboardAgent", "dashboard agent"),
        ("ray::RuntimeEnvAgent", "runtime-env agent"), ("autoscaler/_private/monitor.py", "autoscaler"),
        ("ray::", "worker"), ("jobs/fedavg_100clients.py", "driver"),
    ):  # fmt: skip
        if part in words:
            return kind
    return words


def test_no_port_is_open_to_others_but_those_of_ray_that_the_documentation_lists(running, state):  # noqa: F811
    own = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    open_to_others: dict[str, set[int]] = {}
    for process in owned(state):
        try:
            listening = [c.laddr for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
            for address in listening:
                if address.ip not in own:
                    open_to_others.setdefault(kind_of(process), set()).add(address.port)
        except psutil.Error:  # it has ended
            continue
    (table,) = re.findall(r"^\| process \|.*?\n\n", (DOCS / "dashboard.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)) - {"process", "---"}
    assert open_to_others.keys() <= listed, open_to_others
    assert int(running["RAY_API_SERVER_ADDRESS"].rpartition(":")[2]) not in set().union(*open_to_others.values())
    # Over HTTP nobody gets an answer without the token but to the question for metrics.
    host = next(c.laddr.ip for p in owned(state) for c in p.net_connections() if c.laddr and "." in c.laddr.ip
                and c.laddr.ip not in ("0.0.0.0", *own) and ":" not in c.laddr.ip)  # fmt: skip
    answers, refused = {}, set()
    for kind, found in open_to_others.items():
        for port in found:
            try:
                with urlopen(f"http://{host}:{port}/api/jobs/", timeout=10) as answer:
                    answers[kind, port] = answer.read(200).decode()
            except HTTPError as error:
                refused.add(error.code)
            except (OSError, HTTPException):  # gRPC is no HTTP/1
                continue
    assert refused == {401}
    assert all(text.startswith("# HELP") for text in answers.values())
    assert {kind for kind, _ in answers} <= {"dashboard agent", "autoscaler", "dashboard"}


def test_only_who_has_the_token_submits_and_connects(running):
    assert oct(os.stat(running["RAY_AUTH_TOKEN_PATH"]).st_mode & 0o777) == "0o600"
    address = {key: running[key] for key in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
    submit = ["ray", "job", "submit", "--", "true"]
    refused = call(*submit, **address, RAY_AUTH_MODE="disabled")
    assert refused.returncode != 0
    assert "auth" in (refused.stdout + refused.stderr).lower()
    assert call(*submit, **{k: v for k, v in running.items() if k.startswith("RAY_")}).returncode == 0
