#!/usr/bin/env bash
# A Ray cluster on this machine for one job: start a head of our own, `ray job submit` what is asked, follow it, stop.
# Usage: cluster/one_job.sh BIN_DIR [OPTIONS OF ray job submit] -- jobs/fedavg_100clients.py [--rounds 5 …]
# To change: RAY_START adds options to `ray start`, for example RAY_START="--num-gpus 4".
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
head=""
stop() {
    trap - EXIT INT TERM
    if [ -n "$head" ] && kill -TERM "$head" 2>/dev/null; then wait "$head" || true; fi # ends its own Ray only
    rm -rf "$state"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

read -r gcs dashboard agent client < <(free_ports 4)
use_new_token "$state/token"
export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"

echo "starting Ray; dashboard while the job runs: $RAY_API_SERVER_ADDRESS (token: $state/token)"
# shellcheck disable=SC2086 # RAY_START is a list of words
ray start --head --block --port "$gcs" --dashboard-host 127.0.0.1 --dashboard-port "$dashboard" \
    --dashboard-agent-listen-port "$agent" --ray-client-server-port "$client" --temp-dir "$state/r" \
    --disable-usage-stats ${RAY_START:-} >"$state/head.log" 2>&1 &
head=$!
wait_for_jobs "$head" "$state/head.log"
ray job submit --log-style=record "$@"
