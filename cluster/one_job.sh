#!/usr/bin/env bash
# A Ray cluster on this machine for one job: start a head of our own, `ray job submit` what is asked, follow it, stop.
# Usage: cluster/one_job.sh BIN_DIR [OPTIONS OF ray job submit] -- jobs/fedavg_100clients.py [--rounds 5 …]
# RAY_START adds options to `ray start`, for example RAY_START="--num-gpus 4".
set -euo pipefail
cd "$(dirname "$0")/.." # jobs run where Ray was started, so paths in them are relative to the repository
bin=$(cd "$1" && pwd)
shift
export PATH="$bin:$PATH" # jobs get the PATH Ray was started with, and `env python` must find ours

state=$(mktemp -d "${TMPDIR:-/tmp}/raysim-XXXXXX") # short: Ray puts sockets below it
head=""
stop() {
    trap - EXIT INT TERM
    if [ -n "$head" ] && kill -TERM "$head" 2>/dev/null; then wait "$head" || true; fi # ends its own Ray only
    rm -rf "$state"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

# Four ports at once, so that they differ.
read -r gcs dashboard agent client < <(python -c '
import socket
sockets = [socket.socket() for _ in range(4)]
for s in sockets:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')

# Only who can read this file can submit to the cluster.
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$state/token")
unset RAY_ADDRESS RAY_AUTH_TOKEN
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/token" RAY_USAGE_STATS_ENABLED=0
export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"

echo "starting Ray; dashboard while the job runs: $RAY_API_SERVER_ADDRESS (token: $state/token)"
# shellcheck disable=SC2086 # RAY_START is a list of words
ray start --head --block --port "$gcs" --dashboard-host 127.0.0.1 --dashboard-port "$dashboard" \
    --dashboard-agent-listen-port "$agent" --ray-client-server-port "$client" --temp-dir "$state/ray" \
    --disable-usage-stats ${RAY_START:-} >"$state/head.log" 2>&1 &
head=$!
# The dashboard answers before the agent that runs jobs is there, so readiness is a job that went through.
until ray job submit --no-wait -- true >/dev/null 2>&1; do
    kill -0 "$head" 2>/dev/null || { cat "$state/head.log" >&2; echo "one_job.sh: Ray did not start" >&2; exit 1; }
    sleep 0.5
done
ray job submit --log-style=record "$@"
