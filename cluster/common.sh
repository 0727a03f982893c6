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
    [ ${#base} -le 20 ] || base=/tmp
    refuse_unsafe_place "$base"
    mktemp -d "$base/raysim-XXXXXX"
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
