"""The process beside a run: what it says of an end without a last word. The runs here have a Ray of straw."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from raysim.engine.ray_runner import orphan_watch, private_folder
from raysim.engine.ray_runner.orphan_watch import Watcher, agent_of

ROOT = Path(__file__).parents[3]

# Tells what it is given, starts processes with the names of Ray's, and waits; answers with the first death it hears of.
RUN = """
import os, subprocess, sys
from pathlib import Path
from raysim.engine.ray_runner.orphan_watch import Watch
folder, out, *words = sys.argv[1:]
watch = Watch(dict(os.environ), out, folder=Path(folder))
null = subprocess.DEVNULL
daemons = [subprocess.Popen([f"{out}/{name}", "600"], stdout=null, stderr=null) for name in ("gcs_server", "raylet")]
print(watch.process.pid, *(daemon.pid for daemon in daemons), flush=True)
input()
for word in words:
    watch.tell(word)
if {"over", "said"} <= set(words):
    sys.exit()
for who in watch.deaths():
    print(who, flush=True)
"""


@pytest.fixture
def run(tmp_path):
    """Start such a run; it, the process beside it, its GCS and its raylet, and the folder of its Ray."""
    started = []

    def start(*words: str):
        for name in ("raylet", "gcs_server"):
            shutil.copy(shutil.which("sleep"), tmp_path / name)
        folder = private_folder.make()
        command = [sys.executable, "-c", RUN, str(folder), str(tmp_path), *words]
        started.append(subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
        beside, gcs, raylet = (psutil.Process(int(pid)) for pid in started[-1].stdout.readline().split())
        started[-1].stdin.write("\n")
        started[-1].stdin.flush()
        return started[-1], beside, gcs, raylet, folder

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen, *others: psutil.Process) -> str:
    """What is said at the end of all."""
    _, errors = process.communicate(timeout=60)  # the process beside it holds stderr, too
    _, alive = psutil.wait_procs(others, timeout=60)
    assert not alive
    return errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "raysim: the driver of the run died while Ray was starting; give the same command again, with --out "),
        (["running"], "raysim: the driver of the run died; give the same command again, with --out "),
        (["running", "interrupted"], "raysim: interrupted; "),
        (["running", "said"], ""),
    ],
)
def test_a_run_that_is_killed_takes_everything_along(run, words, says):
    process, beside, gcs, raylet, folder = run(*words)
    wait_for_look(beside)
    process.kill()
    said = end(process, beside, gcs, raylet)
    assert said.startswith(says)
    assert said.count("\n") == bool(says)
    assert not folder.exists()


@pytest.mark.slow
def test_how_to_go_on_depends_on_what_was_recorded(run, tmp_path):
    process, beside, *_ = run("running")
    (tmp_path / "config.json").touch()
    wait_for_look(beside)
    process.kill()
    assert end(process, beside) == (
        f"raysim: the driver of the run died; `python -m raysim resume {tmp_path}` goes on\n"
    )


@pytest.mark.parametrize("name", ["raylet", "GCS"])
def test_the_run_hears_who_has_died_and_if_it_ends_without_a_word_we_say_so(run, name):
    process, beside, gcs, raylet, folder = run()
    wait_for_look(beside)
    (raylet if name == "raylet" else gcs).kill()
    assert process.stdout.readline() == f"{name}\n"
    process.kill()
    said = end(process, beside, gcs, raylet)
    assert said.startswith(f"raysim: Ray's {name} died while Ray was starting; ")
    assert said.count("\n") == 1
    assert not folder.exists()


@pytest.mark.slow
def test_it_survives_signals_that_are_meant_for_the_run(run):
    process, beside, *_ = run("running")
    wait_for_look(beside)
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        beside.send_signal(kind)
    process.kill()
    assert "the driver of the run died" in end(process, beside)


def test_another_takes_its_place_where_it_is_killed(run):
    process, beside, gcs, raylet, folder = run("running")
    wait_for_look(beside)
    beside.kill()
    beside = wait_for_another(process, beside, gcs, raylet)
    wait_for_look(beside)
    raylet.kill()
    assert process.stdout.readline() == "raylet\n"
    process.kill()
    said = end(process, beside, gcs, raylet)
    assert said.startswith("raysim: Ray's raylet died; ")  # it knows that Ray was running
    assert said.count("\n") == 1
    assert not folder.exists()


# A raylet that another has started, with an agent: what a run on a cluster finds. It prints the agent's number.
RAYLET = "(exec -a ray::RuntimeEnvAgent sleep 600) & echo $!; wait; sleep 600"


@pytest.mark.parametrize("name", ["raylet", "runtime-env agent"])
def test_on_a_cluster_it_is_the_raylet_or_its_agent_that_died_and_not_the_driver(name, tmp_path):
    """Ray ends the driver without a word when its raylet is gone, and the raylet when its agent is; the head stays."""
    shutil.copy(shutil.which("bash"), tmp_path / "raylet")
    socket_name = str(tmp_path / "sockets" / "raylet")
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        subprocess.Popen(
            [tmp_path / "raylet", "-c", RAYLET, f"--raylet_socket_name={socket_name}"], stdout=-1
        ) as raylet,
    ):
        agent = psutil.Process(int(raylet.stdout.readline()))
        watching = (
            "import os, sys; from raysim.engine.ray_runner.orphan_watch import Watch\n"
            "watch = Watch(dict(os.environ), '', *sys.argv[1:])\nprint(watch.process.pid, flush=True)\n"
            "for who in watch.deaths(): print(who, flush=True)"
        )
        command = [sys.executable, "-c", watching, f"127.0.0.1:{head.getsockname()[1]}", socket_name]
        run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_for_look(psutil.Process(int(run.stdout.readline())))
            victim = agent if name == "runtime-env agent" else raylet
            victim.kill()
            assert run.stdout.readline() == f"{name}\n"
            run.kill()
            assert end(run) == f"raysim: Ray's {name} died; give the same command again\n"
            assert head.fileno() >= 0
        finally:
            for process in (run, raylet, agent):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def test_after_an_orderly_end_it_touches_nothing(run):
    process, beside, gcs, raylet, folder = run("running", "stopping", "over", "said")
    assert end(process, beside) == ""
    assert folder.exists()
    assert raylet.is_running()
    for daemon in (gcs, raylet):
        daemon.kill()
    private_folder.remove(folder)


def wait_for_another(process: subprocess.Popen, *known: psutil.Process) -> psutil.Process:
    """The child of the run that was not there before."""
    while not (others := set(psutil.Process(process.pid).children()) - set(known)):
        time.sleep(0.05)
    (other,) = others
    return other


def wait_for_look(beside: psutil.Process) -> None:
    """Until it watches both daemons: it has a descriptor for each."""
    for _ in range(600):
        links = []
        for descriptor in Path(f"/proc/{beside.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed in this moment
                links.append(os.readlink(descriptor))
        if sum("pidfd" in link for link in links) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("it does not watch Ray's processes")


@pytest.mark.parametrize(("script", "title"), orphan_watch.SCRIPTS.items())
def test_an_agent_without_its_title_is_one_already(tmp_path, script, title):
    """It was looked for again half a minute later, and one that died until then was reported as the driver."""
    path = tmp_path / script.removeprefix("/")
    path.parent.mkdir(parents=True)
    path.write_text("import time\ntime.sleep(600)\n")
    watcher = Watcher(os.getpid(), "", "", "", str(tmp_path))
    watcher.reported.add("running")
    raylet = subprocess.Popen(["sh", "-c", f"{sys.executable} -u {path} --node-id=1; true"])
    try:
        while not watcher.names:  # it takes a moment until the process is the agent
            watcher.look()
        (agent,) = psutil.Process(raylet.pid).children()
        assert [*watcher.names.values()] == [title]
        assert watcher.started
        assert not watcher.complete  # the others may still come
        agent.kill()
        raylet.wait()
        (descriptor,) = watcher.names
        watcher.note_death(descriptor)
        assert watcher.last_line().startswith(f"raysim: Ray's {title} died; ")
    finally:
        for process in psutil.Process().children(recursive=True):
            if "--node-id=1" in process.cmdline():
                process.kill()
        raylet.kill()
        for descriptor in watcher.names:
            os.close(descriptor)


def test_the_scripts_of_agents_are_those_that_ray_starts():
    from ray._private import services

    folder = Path(services.RAY_PATH).parent
    for script, title in orphan_watch.SCRIPTS.items():
        assert (folder / script.removeprefix("/")).is_file()
        assert agent_of([sys.executable, "-u", str(folder) + script]) == title
    assert agent_of(["raylet", f"--runtime_env_agent_command=python {next(iter(orphan_watch.SCRIPTS))} --x"]) is None
