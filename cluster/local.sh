#!/usr/bin/env bash
# A cluster of several nodes on this machine: one raylet per node, with logical CPUs and GPUs.
# Usage: cluster/local.sh start --nodes 3 --gpus 2 [--cpus 1] [--dashboard-host 127.0.0.1] | status | stop
#   eval "$(cluster/local.sh start --nodes 3 --gpus 2)"    # start, and use it in this shell
# To change: RAYSIM_CLUSTER=DIR (short: Ray puts sockets below it) for a second cluster beside the first;
# RAYSIM_START_SECONDS=300 on a machine that is too busy to have Ray up in a minute.
set -euo pipefail
cd "$(dirname "$0")/.." # jobs run where Ray was started, so paths in them are relative to the repository
# shellcheck source=cluster/common.sh
. cluster/common.sh
state=${RAYSIM_CLUSTER:-/tmp/raysim-$(id -u)}
[ ! -x .venv/bin/ray ] || export PATH="$PWD/.venv/bin:$PATH" # jobs get the PATH Ray was started with

stop() { # [SECONDS IN WHICH IT MAY END IN ORDER]
    let_go_of_ports
    [ -e "$state" ] || [ -L "$state" ] || return 0
    refuse_unless_ours "$state"
    [ -f "$state/made-by-local.sh" ] || return 0 # never delete somebody else's directory
    end_nodes "${1:-20}" "RAYSIM_OWNER=$state" "$state"/node*.pid
    rm -rf "$state"
}

status() {
    local file node pid code=0
    [ ! -e "$state" ] && [ ! -L "$state" ] || refuse_unless_ours "$state"
    [ -f "$state/exports" ] || die 1 "no cluster in $state; start one with: cluster/local.sh start --nodes 3 --gpus 2"
    for file in "$state"/node*.pid; do
        node=$(basename "$file" .pid) pid=$(cat "$file")
        if is_ours "$pid"; then echo "# $node: running, process $pid"; else echo "# $node: gone"; code=1; fi
    done
    cat "$state/exports"
    return "$code"
}

launch() { # NUMBER
    local node=(--num-cpus "$cpus" --num-gpus "$gpus" --memory "$memory" --object-store-memory "$store")
    if [ "$1" -gt 1 ]; then
        launch_node "$1" "${node[@]}" --address "127.0.0.1:$gcs"
    else
        launch_node 1 "${node[@]}" --head --dashboard-host "$host"
        export RAY_API_SERVER_ADDRESS="http://$host:$dashboard"
    fi
}

number() { # FLAG VALUE LEAST
    if ! [[ "$2" =~ ^[0-9]+$ ]] || [ "$2" -lt "$3" ]; then die 2 "$1 '$2': give a whole number, $3 or more"; fi
}

start() {
    local nodes=1 i available
    cpus=1 gpus=0 host=127.0.0.1
    while [ $# -gt 0 ]; do
        [ $# -ge 2 ] || die 2 "$1: give a value"
        case "$1" in
            --nodes) number "$1" "$2" 1 && nodes=$2 ;;
            --gpus) number "$1" "$2" 0 && gpus=$2 ;;
            --cpus) number "$1" "$2" 1 && cpus=$2 ;;
            --dashboard-host) host=$2 ;;
            *) die 2 "unknown option '$1'; there are --nodes --gpus --cpus --dashboard-host" ;;
        esac
        shift 2
    done
    refuse_open_dashboard --dashboard-host "$host"
    command -v ray >/dev/null || die 2 "there is no 'ray' on the PATH; run 'make setup', or activate an environment"
    if [[ "$state" != /* ]] || [ ${#state} -gt 30 ]; then
        die 2 "RAYSIM_CLUSTER=$state: give an absolute path of at most 30 characters, for Ray puts sockets below it"
    fi
    if [ -e "$state" ] || [ -L "$state" ]; then
        refuse_unless_ours "$state"
        die 2 "$state exists: cluster/local.sh stop ends what runs there"
    fi
    refuse_unsafe_place "$(dirname "$state")"
    mkdir -m 700 "$state" # fails where somebody else was quicker
    touch "$state/made-by-local.sh"
    trap 'stop 5' EXIT # until all is up

    # The nodes share this machine's memory; each alone would claim most of it.
    available=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo) # in KiB
    memory=$((available * 1024 * 6 / 10 / nodes)) store=$((available * 1024 * 3 / 10 / nodes))
    if [ "${RAY_AUTH_MODE:-token}" = token ]; then use_new_token "$state/token"; else unset RAY_ADDRESS; fi
    launch 1
    bring_up 1 jobs
    for i in $(seq 2 "$nodes"); do launch "$i"; done
    for i in $(seq 2 "$nodes"); do bring_up "$i"; done
    {
        echo "export RAY_ADDRESS=127.0.0.1:$gcs RAY_API_SERVER_ADDRESS=$RAY_API_SERVER_ADDRESS"
        echo "export RAY_AUTH_MODE=$RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-}"
    } >"$state/exports"
    let_go_of_ports
    trap - EXIT
    echo "# $nodes nodes with $cpus CPUs and $gpus GPUs each; dashboard: $RAY_API_SERVER_ADDRESS; to use it:"
    cat "$state/exports"
}

case "${1:-}" in
    start) shift && start "$@" ;;
    status) status ;;
    stop) stop ;;
    *) die 2 "say start, status or stop; the first lines of cluster/local.sh explain" ;;
esac
