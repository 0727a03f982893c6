#!/usr/bin/env bash
# One Ray cluster per Slurm job, for one raysim job; submit from the repository, on a file system all nodes share:
#   sbatch cluster/slurm.sh jobs/hfmds_100clients.py [--rounds 50 …]
# To change: the #SBATCH lines. Ports, temp directories and the token are the job's own, so jobs can share nodes.
#SBATCH --job-name=raysim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
set -euo pipefail
cd "$SLURM_SUBMIT_DIR" # Slurm runs a copy of this file from elsewhere
# shellcheck source=cluster/common.sh
. cluster/common.sh
[ ! -x .venv/bin/ray ] || export PATH="$PWD/.venv/bin:$PATH" # jobs get the PATH Ray was started with

state=$(TMPDIR=/tmp private_directory) # on this node's own disk
node="" others="" token=""
stop() {
    trap - EXIT INT TERM
    for pid in $others $node; do
        if kill -TERM "$pid" 2>/dev/null; then wait "$pid" || true; fi # ends its own Ray only
    done
    rm -rf "$state" ${token:+"$token"}
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

start_node() { # OPTIONS OF ray start
    ray start --block --temp-dir "$state/r" --disable-usage-stats --num-cpus "$SLURM_CPUS_ON_NODE" \
        --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --min-worker-port 0 --max-worker-port 0 "$@" >"$state/node.log" 2>&1 &
    node=$!
}

if [ "${1:-}" = --join ]; then # what this file does on the other nodes
    read -r agent < <(free_ports 1)
    start_node --address "$2" --dashboard-agent-listen-port "$agent"
    wait "$node" || { cat "$state/node.log" >&2; exit 1; }
    exit
fi

[ $# -gt 0 ] || die 2 "which job? sbatch cluster/slurm.sh jobs/hfmds_100clients.py"
mkdir -p -m 700 "$HOME/.raysim"
refuse_unless_ours "$HOME/.raysim"
token="$HOME/.raysim/token-$SLURM_JOB_ID" # where the other nodes can read it, too
use_new_token "$token"
read -r gcs dashboard agent client < <(free_ports 4)
address="$(python -c 'import ray; print(ray.util.get_node_ip_address())'):$gcs"
export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"
start_node --head --port "$gcs" --dashboard-host 127.0.0.1 --dashboard-port "$dashboard" \
    --dashboard-agent-listen-port "$agent" --ray-client-server-port "$client"
wait_for_jobs "$node" "$state/node.log"
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --ntasks-per-node=1 \
        --cpus-per-task="$SLURM_CPUS_ON_NODE" --exclude="$SLURMD_NODENAME" bash cluster/slurm.sh --join "$address" &
    others=$!
    # The plan is made from the nodes that are there.
    timeout 300 python -c '
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)' "$address" "$SLURM_NNODES" || die 1 "not all of $SLURM_NNODES nodes have joined in 5 minutes"
fi
ray job submit --log-style=record -- "$@"
