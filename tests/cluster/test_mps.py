"""The script for NVIDIA's Multi-Process Service, with a stand-in for NVIDIA's program."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cluster" / "mps.sh"

# It runs while there is a file in the pipes' directory; without one it fails, as NVIDIA's does.
CONTROL = """#!/usr/bin/env bash
mark="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "${1:-}" = -d ]; then [ -z "${MPS_BROKEN:-}" ] && touch "$mark"; exit; fi
[ -e "$mark" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
read -r word
case "$word" in
    get_default_active_thread_percentage) echo 100.0 ;;
    get_server_list) printf '4711\\n4712\\n' ;;
    quit) rm "$mark" ;;
    *) exit 3 ;;
esac
"""


@pytest.fixture
def mps(tmp_path):
    """Runs the script: (exit code, output, what it says of errors)."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    base = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipes"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "logs"),
    }  # fmt: skip

    def run(*words: str, **environment: str) -> tuple[int, str, str]:
        done = subprocess.run([SCRIPT, *words], env=base | environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


def test_it_starts_says_how_it_is_and_stops(mps, tmp_path):
    code, _, error = mps("status")
    assert (code, "does not run" in error) == (1, True)
    code, said, _ = mps("start")
    assert code == 0
    exported = f"export CUDA_MPS_PIPE_DIRECTORY={tmp_path}/pipes CUDA_MPS_LOG_DIRECTORY={tmp_path}/logs"
    assert exported in said.splitlines()
    assert (tmp_path / "pipes").stat().st_mode & 0o777 == 0o700
    code, said, _ = mps("status")
    assert (code, said) == (0, f"the service runs in {tmp_path}/pipes; servers: 4711 4712\n")
    code, _, error = mps("start")
    assert (code, "runs already" in error) == (2, True)
    assert mps("stop")[0] == 0
    assert mps("status")[0] == 1
    assert mps("stop")[0] == 1


def test_a_service_that_does_not_start_names_its_log(mps, tmp_path):
    code, _, error = mps("start", MPS_BROKEN="1")
    assert code == 1
    assert f"{tmp_path}/logs/control.log says why" in error


def test_a_directory_that_is_somebody_elses_is_refused(mps, tmp_path):
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes").chmod(0o777)
    code, _, error = mps("start")
    assert (code, "is not yours alone" in error) == (2, True)


@pytest.mark.parametrize("words", [(), ("restart",)])
def test_other_words_are_refused(mps, words):
    code, _, error = mps(*words)
    assert (code, "say start, status or stop" in error) == (2, True)


def test_without_nvidias_program_it_says_so(mps):
    code, _, error = mps("start", PATH="/usr/bin:/bin")
    assert code == 2
    assert error == "mps.sh: there is no nvidia-cuda-mps-control on the PATH; it comes with NVIDIA's driver\n"
