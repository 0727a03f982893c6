#!/usr/bin/env bash
# A cluster of several nodes on this machine: one raylet per node, with logical CPUs and GPUs.
# Usage: cluster/local.sh start --nodes 3 --gpus 2 [--cpus 1] [--dashboard-host 127.0.0.1] | status | stop
#   eval "$(cluster/local.sh start --nodes 3 --gpus 2)"    # start, and use it in this shell
# To change: RAYSIM_CLUSTER=DIR (short: Ray puts sockets below it) for a second cluster beside the first.
set -euo pipefail
cd "$(dirname "$0")/.." # jobs run where Ray was started, so paths in them are relative to the repository
# shellcheck source=cluster/common.sh
. cluster/common.sh
state=${RAYSIM_CLUSTER:-/tmp/raysim-$(id -u)}
[ ! -x .venv/bin/ray ] || export PATH="$PWD/.venv/bin:$PATH" # jobs get the PATH Ray was started with

# Every process of this cluster has inherited this variable, whatever it calls itself; nobody else has it.
is_ours() { grep -qzxF "RAYSIM_OWNER=$state" "/proc/$1/environ" 2>/dev/null; }
running() { grep -lzxF "RAYSIM_OWNER=$state" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true; }

stop() {
    local file pid
    [ -e "$state" ] || [ -L "$state" ] || return 0
    refuse_unless_ours "$state"
    [ -f "$state/made-by-local.sh" ] || return 0 # never delete somebody else's directory
    for file in "$state"/node*.pid; do
        if [ -f "$file" ] && is_ours "$(cat "$file")"; then kill -TERM "$(cat "$file")" || true; fi # and so its node's
    done
    for _ in $(seq 100); do
        [ -n "$(running)" ] || break
        sleep 0.2
    done
    for pid in $(running); do kill -KILL "$pid" 2>/dev/null || true; done
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

# One raylet in the background, in a session of its own, so that it outlives this shell and its Ctrl-C.
start_node() { # NUMBER OPTIONS OF ray start
    local log="$state/node$1.log" pid="$state/node$1.pid" temp="$state/ray$1"
    shift
    # A temp directory each: in one, nodes that start at once choose the same socket. Worker ports 0: any free one, for
    # by default every raylet deals out the same range.
    # SPT_NOENV: worker processes change their title without writing it over the environment we know them by.
    RAYSIM_OWNER=$state SPT_NOENV=1 setsid ray start --block --temp-dir "$temp" --disable-usage-stats \
        --min-worker-port 0 --max-worker-port 0 --num-cpus "$cpus" --num-gpus "$gpus" --memory "$memory" \
        --object-store-memory "$store" "$@" >"$log" 2>&1 </dev/null &
    echo $! >"$pid"
}

wait_for_node() { # NUMBER
    local log="$state/node$1.log"
    until grep -qs "Ray runtime started" "$log"; do
        kill -0 "$(cat "$state/node$1.pid")" 2>/dev/null || { cat "$log" >&2; die 1 "node $1 did not start"; }
        sleep 0.2
    done
}

number() { # FLAG VALUE LEAST
    if ! [[ "$2" =~ ^[0-9]+$ ]] || [ "$2" -lt "$3" ]; then die 2 "$1 '$2': give a whole number, $3 or more"; fi
}

start() {
    local nodes=1 host=127.0.0.1 dashboard gcs i available
    cpus=1 gpus=0
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
    trap stop EXIT # until all is up

    # The nodes share this machine's memory; each alone would claim most of it.
    available=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo) # in KiB
    memory=$((available * 1024 * 6 / 10 / nodes)) store=$((available * 1024 * 3 / 10 / nodes))
    if [ "${RAY_AUTH_MODE:-token}" = token ]; then use_new_token "$state/token"; else unset RAY_ADDRESS; fi
    local ports
    read -r -a ports < <(free_ports $((nodes + 3)))
    gcs=${ports[0]} dashboard=${ports[1]}
    export RAY_API_SERVER_ADDRESS="http://$host:$dashboard"
    start_node 1 --head --port "$gcs" --dashboard-host "$host" --dashboard-port "$dashboard" \
        --ray-client-server-port "${ports[2]}" --dashboard-agent-listen-port "${ports[3]}"
    wait_for_node 1
    for i in $(seq 2 "$nodes"); do
        start_node "$i" --address "127.0.0.1:$gcs" --dashboard-agent-listen-port "${ports[i + 2]}"
    done
    for i in $(seq 2 "$nodes"); do wait_for_node "$i"; done
    wait_for_jobs "$(cat "$state/node1.pid")" "$state/node1.log"
    {
        echo "export RAY_ADDRESS=127.0.0.1:$gcs RAY_API_SERVER_ADDRESS=$RAY_API_SERVER_ADDRESS"
        echo "export RAY_AUTH_MODE=$RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-}"
    } >"$state/exports"
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
