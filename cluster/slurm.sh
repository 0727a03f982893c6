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
others="" token=""
stop() {
    trap - EXIT INT TERM
    if [ -n "$others" ] && kill -TERM "$others" 2>/dev/null; then wait "$others" || true; fi
    let_go_of_ports
    end_nodes 20 "RAYSIM_OWNER=$state" "$state"/node*.pid # its own Ray only
    rm -rf "$state" ${token:+"$token"}
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

address="" # of the head; none where this is its node
launch() { # NUMBER
    local node=(--num-cpus "$SLURM_CPUS_ON_NODE" --num-gpus "${SLURM_GPUS_ON_NODE:-0}")
    if [ -n "$address" ]; then
        launch_node "$1" "${node[@]}" --address "$address"
    else
        launch_node "$1" "${node[@]}" --head --dashboard-host 127.0.0.1
        export RAY_API_SERVER_ADDRESS="http://127.0.0.1:$dashboard"
    fi
}

if [ "${1:-}" = --join ]; then # what this file does on the other nodes
    address=$2
    launch 1
    bring_up 1
    let_go_of_ports
    while is_ours "$(cat "$state/node1.pid")"; do sleep 1; done
    cat "$state/node1.log" >&2
    exit 1
fi

[ $# -gt 0 ] || die 2 "which job? sbatch cluster/slurm.sh jobs/hfmds_100clients.py"
mkdir -p -m 700 "$HOME/.raysim"
refuse_unless_ours "$HOME/.raysim"
token="$HOME/.raysim/token-$SLURM_JOB_ID" # where the other nodes can read it, too
use_new_token "$token"
launch 1
bring_up 1 jobs
let_go_of_ports
if [ "$SLURM_NNODES" -gt 1 ]; then
    address="$(python -c 'import ray; print(ray.util.get_node_ip_address())'):$gcs"
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
