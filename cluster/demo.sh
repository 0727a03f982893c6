#!/usr/bin/env bash
# A Ray cluster of our own on this machine for one job: start a head, submit, follow, print where things are, stop.
# Usage: cluster/demo.sh BIN_DIR [JOB [JOB'S FLAGS]]
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(cd "$1" && pwd)
shift
job=${1:-jobs/fedavg_100clients.py}
[ $# -gt 0 ] && shift
export PATH="$bin:$PATH"  # Ray gives the job the PATH it was started with, and `env python` must find ours

state=$(mktemp -d "${TMPDIR:-/tmp}/raysim-XXXXXX") # short: Ray puts sockets below it
head=""
stop() {
    trap - EXIT INT TERM
    if [ -n "$head" ] && kill -TERM "$head" 2>/dev/null; then wait "$head" || true; fi # ends its own Ray only
    rm -rf "$state"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
gcs=$(free_port) dashboard=$(free_port) agent=$(free_port) client=$(free_port)

# Only who can read this file can submit to the cluster.
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$state/token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/token" RAY_USAGE_STATS_ENABLED=0
export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"
unset RAY_ADDRESS

echo "starting Ray …"
ray start --head --block --port "$gcs" --dashboard-host 127.0.0.1 --dashboard-port "$dashboard" \
    --dashboard-agent-listen-port "$agent" --ray-client-server-port "$client" --temp-dir "$state/ray" \
    --disable-usage-stats >"$state/head.log" 2>&1 &
head=$!
for _ in $(seq 120); do
    ray job list >/dev/null 2>&1 && break
    kill -0 "$head" 2>/dev/null || { cat "$state/head.log" >&2; echo "demo: Ray did not start" >&2; exit 1; }
    sleep 0.5
done
echo "dashboard: $RAY_API_SERVER_ADDRESS (while the job runs)"

# `--out` is given so that the result can be found from here.
out="$PWD/runs/demo-$(date +%Y%m%d-%H%M%S)"
ray job submit --log-style=record -- "$job" --out "$out" "$@"
echo "run directory: $out"
