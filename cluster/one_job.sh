#!/usr/bin/env bash
# A Ray cluster on this machine for one job: start a head of our own, `ray job submit` what is asked, follow it, stop.
# Usage: cluster/one_job.sh BIN_DIR [OPTIONS OF ray job submit] -- jobs/fedavg_100clients.py [--rounds 5 …]
# To change: RAY_START adds options to `ray start`, for example RAY_START="--num-gpus 4";
# RAYSIM_START_SECONDS=300 on a machine that is too busy to have Ray up in a minute.
set -euo pipefail
cd "$(dirname "$0")/.." # jobs run where Ray was started, so paths in them are relative to the repository
# shellcheck source=cluster/common.sh
. cluster/common.sh
bin=$(cd "$1" && pwd)
shift
export PATH="$bin:$PATH" # jobs get the PATH Ray was started with, and `env python` must find ours
# shellcheck disable=SC2086 # RAY_START is a list of words
refuse_open_dashboard ${RAY_START:-}

state=$(private_directory)
stop() {
    trap - EXIT INT TERM
    let_go_of_ports
    end_nodes "$1" "RAYSIM_OWNER=$state" "$state"/node*.pid # its own Ray only
    rm -rf "$state"
}
trap 'stop 5' EXIT
trap 'stop 5; exit 130' INT TERM

launch() { # NUMBER
    # shellcheck disable=SC2086 # RAY_START is a list of words
    launch_node "$1" --head --dashboard-host 127.0.0.1 ${RAY_START:-}
    export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"
}

use_new_token "$state/token"
echo "starting Ray"
launch 1
bring_up 1 jobs
let_go_of_ports
echo "dashboard while the job runs: $RAY_API_SERVER_ADDRESS (token: $state/token)"
ray job submit --log-style=record "$@"
