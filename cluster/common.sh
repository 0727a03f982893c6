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

# That many free ports, taken at once so that they differ.
free_ports() {
    python -c '
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in sockets:
    s.bind(("", 0))
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

# Only who can read this file can use the cluster; clients and servers find it through the variables.
use_new_token() { # FILE
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$1")
    unset RAY_ADDRESS RAY_AUTH_TOKEN
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$1" RAY_USAGE_STATS_ENABLED=0
}

# The dashboard answers before the agent that runs jobs is there, so readiness is a job that went through.
wait_for_jobs() { # PID_OF_HEAD ITS_LOG
    until ray job submit --no-wait -- true >/dev/null 2>&1; do
        kill -0 "$1" 2>/dev/null || { cat "$2" >&2; die 1 "Ray did not start"; }
        sleep 0.5
    done
}
