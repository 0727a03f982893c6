# What the start scripts share; sourced by them.
# shellcheck shell=bash

die() { # CODE MESSAGE
    echo "$(basename "$0"): $2" >&2
    exit "$1"
}

# Who reaches a dashboard can run code on the cluster, unless it asks for the token. Takes the words of `ray start`.
refuse_open_dashboard() {
    local host=127.0.0.1
    while [ $# -gt 0 ]; do
        case "$1" in
            --dashboard-host) host=${2:-} ;;
            --dashboard-host=*) host=${1#*=} ;;
        esac
        shift
    done
    case "$host" in 127.* | localhost | ::1) return ;; esac
    [ "${RAY_AUTH_MODE:-token}" = token ] ||
        die 2 "a dashboard on '$host' without a token is refused; unset RAY_AUTH_MODE, or leave out --dashboard-host"
}

# Refuse a path that another user could have put there, or could move: nothing below it is read or run before.
# A folder of ours, no link, in which nobody else writes; above it, where others may write, only owners may rename.
refuse_unless_ours() { # DIRECTORY
    [ -n "$(find "$1" -maxdepth 0 -type d -uid "$(id -u)" ! -perm /022)" ] ||
        die 2 "$1 is not yours alone: a link, or another user owns it or may write to it; remove it or use another"
    refuse_unsafe_place "$(dirname "$1")"
}

refuse_unsafe_place() { # DIRECTORY
    local above
    above=$(cd -P "$1" 2>/dev/null && pwd) || die 2 "$1 cannot be entered; create it, or use another"
    while true; do
        [ -n "$(find "$above" -maxdepth 0 \( -uid 0 -o -uid "$(id -u)" \) \( ! -perm /022 -o -perm -1000 \))" ] ||
            die 2 "$above can be changed by other users, so nothing below it is safe; use another directory"
        [ "$above" != / ] || return 0
        above=$(dirname "$above")
    done
}

# A new directory that only we can enter, with a name nobody can guess. Ray puts sockets below it, of at most 107 bytes.
# Ray opens its own --temp-dir to everybody, so that lies in this one.
private_directory() {
    local base=${TMPDIR:-/tmp}
    [ ${#base} -le 16 ] || base=/tmp
    refuse_unsafe_place "$base"
    mktemp -d "$base/raysim-XXXXXX"
}

# Only who can read this file can use the cluster; clients and servers find it through the variables.
use_new_token() { # FILE
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$1")
    unset RAY_ADDRESS RAY_AUTH_TOKEN
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$1" RAY_USAGE_STATS_ENABLED=0
}

# From here on: the nodes of a cluster. Node N keeps its files below $state: rayN, nodeN.log, nodeN.pid. A script that
# starts nodes says in its own function `launch NUMBER` how.
node_ports=(node-manager-port object-manager-port dashboard-agent-listen-port dashboard-agent-grpc-port)
node_ports+=(runtime-env-agent-port metrics-export-port)
head_ports=(port dashboard-port ray-client-server-port AUTOSCALER_METRIC_PORT DASHBOARD_METRIC_PORT)
start_seconds=${RAYSIM_START_SECONDS:-50}
holders="" # processes that hold ports for Ray until it is up
lost=""    # what Ray said of its ports when the node was last launched again

# What Ray's processes say when another has their port; some only go on without it, and then every job waits for ever.
# The last is a raylet's that has waited 15 s for an agent to say which port it has, and ends: the machine was too busy.
taken='Address already in use|No address added|ailed to bind to address|failed to bind after|already occupied|Timed out waiting for file'

# Every process of a cluster has inherited RAYSIM_OWNER, whatever it calls itself; nobody else has it.
running() { grep -lzxF "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true; } # VARIABLE=VALUE
is_ours() { grep -qzxF "RAYSIM_OWNER=$state" "/proc/$1/environ" 2>/dev/null; }

let_go_of_ports() {
    local holder
    for holder in $holders; do kill "$holder" 2>/dev/null || true; done
    holders=""
}

# One node in the background, in a session of its own, so that it outlives this shell and its Ctrl-C. Of a head the
# ports for RAY_ADDRESS and the dashboard are then in `gcs` and `dashboard`.
launch_node() { # NUMBER OPTIONS OF ray start
    local node="$state/node$1" temp="$state/ray$1" names=("${node_ports[@]}") ports=() flags=() variables=() port
    shift
    case " $* " in *" --head "*) names+=("${head_ports[@]}") ;; esac
    read -r -a ports < <(exec python cluster/ports.py "${names[@]}") || exit 1 # it has said why
    holders+=" $!"
    for port in "${ports[@]}"; do
        case "$port" in
            port=*) gcs=${port#*=} ;;
            dashboard-port=*) dashboard=${port#*=} ;;
        esac
        case "$port" in [A-Z]*) variables+=("$port") ;; *) flags+=("--$port") ;; esac
    done
    # A temp directory each: in one, nodes that start at once choose the same socket. Worker ports 0: workers come and go,
    # and each takes whatever is free as it starts, which is no port of ours; one that is dealt out could be gone by then.
    # SPT_NOENV: worker processes change their title without writing it over the environment we know them by.
    env "${variables[@]}" RAYSIM_NODE="$node" RAYSIM_OWNER="$state" SPT_NOENV=1 setsid \
        ray start --block --temp-dir "$temp" --disable-usage-stats --min-worker-port 0 --max-worker-port 0 \
        --log-color false "${flags[@]}" "$@" >"$node.log" 2>&1 </dev/null &
    echo $! >"$node.pid"
    disown # bash would add a line of its own about a node that was killed
}

# Wait until a node is up, launched again where it did not get its ports. Of a head that is to run jobs, until one went through.
bring_up() { # NUMBER [jobs]
    until wait_for_node "$1" && { [ -z "${2:-}" ] || wait_for_jobs; }; do
        end_nodes 3 "RAYSIM_NODE=$state/node$1" "$state/node$1.pid"
        rm -rf "$state/ray$1"
        launch "$1"
    done
}

wait_for_node() { # NUMBER
    local agent="$state/ray$1/session_latest/logs/dashboard_agent.log"
    until grep -qs "Ray runtime started" "$state/node$1.log" && grep -qs "agent http address" "$agent"; do
        has_its_ports "$1" || return 1
        sleep 0.3
    done
}

# The dashboard answers before it can run jobs, so readiness is a job that was accepted. Not by `ray job submit`: on a
# busy machine that alone takes half a minute.
wait_for_jobs() {
    until python -c '
import os, urllib.request
headers = {"Content-Type": "application/json"}
if os.environ.get("RAY_AUTH_MODE") == "token":
    with open(os.environ["RAY_AUTH_TOKEN_PATH"]) as token:
        headers["Authorization"] = "Bearer " + token.read()
job = urllib.request.Request(os.environ["RAY_API_SERVER_ADDRESS"] + "/api/jobs/", b"{\"entrypoint\": \"true\"}", headers)
try:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(job, timeout=15).close()
except OSError as error:
    raise SystemExit(f"{job.full_url}: {error}")' 2>"$state/submit.log"; do
        has_its_ports 1 || return 1
        sleep 0.3
    done
}

# While a node starts: false if it did not get one of its ports. If there is nothing to wait for, this is the end.
has_its_ports() { # NUMBER
    local logs="$state/ray$1/session_latest/logs" said
    # Not those of processes that show figures, and go on without them.
    said=$(grep -sHE "$taken" "$state/node$1.log" "$logs"/{gcs_server,raylet,ray_client_server}.err \
        "$logs"/{dashboard,runtime_env}_agent.{log,err} | tail -n 1 || true)
    if [ $SECONDS -ge "$start_seconds" ]; then
        give_up "$1" "Ray was not up after $start_seconds s (RAYSIM_START_SECONDS gives it longer)" "$said"
    elif [ -n "$said" ]; then
        lost=${said#*:}
        return 1
    elif ! kill -0 "$(cat "$state/node$1.pid")" 2>/dev/null; then
        give_up "$1" "Ray did not start" ""
    fi
}

# End with one line: what was waited for, a log, and the last error in it. The logs are kept; nothing else is.
give_up() { # NUMBER WHAT LOG:LINE
    local log="" line="" next kept
    kept=$(private_directory)
    cp "$state/node$1.log" "$state/submit.log" "$state/ray$1"/session_latest/logs/*.{log,err,out} "$kept" 2>/dev/null || true
    if [ -n "$3" ]; then log=$(basename "${3%%:*}") line=${3#*:}; fi
    # Otherwise where it says most about what did not come.
    for next in submit.log "node$1.log" dashboard_agent.log raylet.err gcs_server.err; do
        [ -z "$line" ] || break
        log=$next line=$(grep -siE "error|fail|fatal|exception" "$kept/$next" | tail -n 1 || true)
    done
    [ -n "$line" ] || log="node$1.log" line=$(tail -n 1 "$kept/node$1.log" 2>/dev/null || true)
    die 1 "$2; $kept/$log: ${line:0:300}${lost:+; of an earlier start: ${lost:0:200}}"
}

# End processes by a variable they have: `ray start` in order, and it ends the others; after a while all that is left.
end_nodes() { # SECONDS VARIABLE=VALUE FILES_OF_PIDS
    local seconds=$1 whose=$2 file pid
    shift 2
    for file in "$@"; do
        if [ -f "$file" ] && is_ours "$(cat "$file")"; then kill -TERM "$(cat "$file")" 2>/dev/null || true; fi
    done
    for _ in $(seq $((seconds * 5))); do
        [ -n "$(running "$whose")" ] || return 0
        sleep 0.2
    done
    for pid in $(running "$whose"); do kill -KILL "$pid" 2>/dev/null || true; done
}
