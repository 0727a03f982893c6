#!/usr/bin/env bash
# NVIDIA's Multi-Process Service on this machine: with it the kernels of several actors run on a GPU at the same time.
# Usage: cluster/mps.sh start | status | stop      on every node with GPUs, start before `ray start`, stop after `ray stop`
# To change: CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_LOG_DIRECTORY, where Ray's processes find it too (default: /tmp/nvidia-mps,
# /tmp/nvidia-log); CUDA_VISIBLE_DEVICES for some GPUs only. The service is for one user: the one who starts Ray.
set -euo pipefail
# shellcheck source=cluster/common.sh
. "$(dirname "$0")/common.sh"

export CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
export CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY:-/tmp/nvidia-log}
control=nvidia-cuda-mps-control

# The daemon answers, or it is not there; what it says is shown to nobody.
running() { echo get_default_active_thread_percentage | timeout 10 "$control" >/dev/null 2>&1; }

start() {
    running && die 2 "the service runs already in $CUDA_MPS_PIPE_DIRECTORY; cluster/mps.sh stop ends it"
    local place
    for place in "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"; do
        refuse_unsafe_place "$(dirname "$place")"
        [ -d "$place" ] || mkdir -m 700 "$place"
        refuse_unless_ours "$place"
    done
    "$control" -d || die 1 "the service did not start; $CUDA_MPS_LOG_DIRECTORY/control.log says why"
    running || die 1 "the service gives no answer; $CUDA_MPS_LOG_DIRECTORY/control.log says why"
    echo "# the service runs; for Ray, in the shell that starts it:"
    echo "export CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_LOG_DIRECTORY"
}

status() {
    running || die 1 "the service does not run in $CUDA_MPS_PIPE_DIRECTORY; cluster/mps.sh start starts it"
    echo "the service runs in $CUDA_MPS_PIPE_DIRECTORY; servers: $(echo get_server_list | "$control" | xargs)"
}

stop() {
    running || die 1 "the service does not run in $CUDA_MPS_PIPE_DIRECTORY"
    echo quit | timeout 60 "$control" >/dev/null || die 1 "the service does not stop: end the processes that use it first"
    echo "# the service has stopped"
}

case "${1:-}" in start | status | stop) ;; *) die 2 "say start, status or stop; the first lines of cluster/mps.sh explain" ;; esac
command -v "$control" >/dev/null || die 2 "there is no $control on the PATH; it comes with NVIDIA's driver"
"$1"
