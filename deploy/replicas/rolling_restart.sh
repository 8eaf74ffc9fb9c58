#!/usr/bin/env bash
# Restarts two replicas of millraced behind a proxy, one after the other and several times, under load, and fails if one request
# failed or one stream was cut.
#   deploy/replicas/rolling_restart.sh nginx|haproxy|sglang-router [FLAG of millraced...]
# It runs all of it on 127.0.0.1: the replicas (on the fake device unless a FLAG says otherwise), the proxy with the file beside this
# script, and millrace-loadtest, over HTTP and, but for sglang-router, gRPC at the same time. The environment may set:
#   MILLRACED, LOADTEST   the programs, by default those of build/
#   CLIENTS  clients of each protocol (64)       ROUNDS   restarts of each replica (3)
#   TOKENS   tokens of each answer (100)         STEP_US  microseconds of a step of the fake device (20000)
#   DELAY    --drain-delay in seconds (2, or 4 for sglang-router)
#   SETTLE   seconds that the proxy has to see a replica that is ready again (2)
#   PORTS    the first of the ports, which are taken as in the proxy's file (8100)
#   DETAILS  a folder to leave the logs and results in
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
die() {
  printf 'rolling_restart.sh: %s\n' "$*" >&2
  exit 1
}
say() { printf '%6.1f s  %s\n' "$(now)" "$*"; }
now() { awk -v begin="$begin" '{ print $1 - begin }' /proc/uptime; }
read -r begin _ </proc/uptime

proxy=${1-}
delay=2 protocols=(http grpc) file=$here/$proxy.conf
case $proxy in
  nginx) ;;
  haproxy) file=$here/haproxy.cfg ;;
  sglang-router) file=$here/sglang-router.flags delay=4 protocols=(http) ;;
  *) die "usage: deploy/replicas/rolling_restart.sh nginx|haproxy|sglang-router [FLAG of millraced...]" ;;
esac
shift
PATH=$PATH:/usr/sbin
millraced=${MILLRACED:-$root/build/millraced} loadtest=${LOADTEST:-$root/build/millrace-loadtest}
for program in "$proxy" "$millraced" "$loadtest" curl python3; do
  command -v "$program" >/dev/null || die "the program $program is missing"
done
clients=${CLIENTS:-64} rounds=${ROUNDS:-3} tokens=${TOKENS:-100} step_us=${STEP_US:-20000} settle=${SETTLE:-2}
delay=${DELAY:-$delay} ports=${PORTS:-8100}
# Enough for the drains, the settling and the starts; whether it was is checked at the end.
seconds=$((rounds * 2 * (delay + settle + tokens * step_us / 1000000 + 2) + 2))

if [ -n "${DETAILS-}" ]; then
  mkdir -p "$DETAILS"
  work=$(cd "$DETAILS" && pwd)
else
  work=$(mktemp -d)
fi
chmod 755 "$work" # nginx's workers have a user of their own
pids=()
finish() {
  local status=$?
  trap - EXIT INT TERM
  kill -TERM "${pids[@]}" 2>/dev/null || true # so that nginx ends its workers
  sleep 0.2
  kill -KILL "${pids[@]}" "${replica[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  [ -n "${DETAILS-}" ] || rm -rf "$work"
  exit $status
}
replica=()
trap finish EXIT
trap 'exit 130' INT TERM

http_port() { echo $((ports + $1)); }
grpc_port() { echo $((ports + 100 + $1)); }
ready() { curl -fs -o /dev/null --max-time 2 "http://127.0.0.1:$1/readyz"; }
# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local left=$(($1 * 20)) what=$2
  shift 2
  until "$@"; do
    [ $((left--)) -gt 0 ] || die "$what took too long; see $work"
    sleep 0.05
  done
}

start_replica() {
  "$millraced" --device fake --fake-step-us "$step_us" --http-port "$(http_port "$1")" --grpc-port "$(grpc_port "$1")" --admin-port 0 \
    --drain-delay "${delay}s" "${flags[@]}" >>"$work/replica$1.log" 2>&1 </dev/null &
  replica[$1]=$!
  wait_for 60 "the start of replica $1" ready "$(http_port "$1")"
}

restart_replica() {
  local status=0
  kill -TERM "${replica[$1]}"
  wait "${replica[$1]}" || status=$?
  [ $status = 0 ] || die "replica $1 ended with $status: $(tail -n 3 "$work/replica$1.log")"
  say "replica $1 has drained"
  start_replica "$1"
  say "replica $1 is ready again"
  sleep "$settle"
}

# The file's ports are 81xx for HTTP, 82xx for gRPC, 8300 for the router's metrics.
start_proxy() {
  local config=$work/${file##*/}
  sed -E "s/\b81(0[0-9])\b/@0@\1/; s/\b82(0[0-9])\b/@1@\1/; s/\b8300\b/@2@00/" "$file" |
    sed -E "s/\b81(0[0-9])\b/@0@\1/; s/\b82(0[0-9])\b/@1@\1/" |
    awk -v ports="$ports" '{
      while (match($0, /@[0-9]@[0-9][0-9]/)) {
        port = ports + 100 * substr($0, RSTART + 1, 1) + substr($0, RSTART + 3, 2)
        $0 = substr($0, 1, RSTART - 1) port substr($0, RSTART + 5)
      }
      print
    }' >"$config"
  case $proxy in
    nginx) exec nginx -p "$work" -c "$config" -g 'daemon off;' ;;
    haproxy) exec haproxy -db -f "$config" ;;
    # shellcheck disable=SC2046 # the words of its lines
    sglang-router) exec sglang-router launch $(grep -v '^#' "$config") ;;
  esac >"$work/proxy.log" 2>&1 </dev/null &
  pids+=($!)
  wait_for 60 "the start of $proxy" curl -fs -o /dev/null --max-time 2 "http://127.0.0.1:$(http_port 0)/v1/models"
}

# judge PROTOCOL: prints the result, and fails if it is not what it must be.
judge() {
  python3 - "$work/$1.json" "$1" "$tokens" "$clients" <<'PYTHON'
import json, sys

result = json.load(open(sys.argv[1]))
name, tokens, clients = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
more = result["millrace_loadtest"]
cut = result["completed"] * tokens - result["total_output_tokens"]
print(f"{name}: {result['completed']} streams completed, {result['failed']} failed, {more['unfinished']} unfinished, {cut} tokens missing")
for error in more.get("error_counts", []):
    print(f"  {error['count']} times: {error['error']}")
sys.exit(result["failed"] or more["unfinished"] or cut or result["completed"] < 2 * clients)
PYTHON
}

flags=("$@")
start_replica 1
start_replica 2
start_proxy
say "$proxy and both replicas run; $clients clients of each of ${protocols[*]} for $seconds s"
declare -A load
for protocol in "${protocols[@]}"; do
  url=http://127.0.0.1:$(http_port 0)
  [ "$protocol" = http ] || url=127.0.0.1:$(grpc_port 0)
  "$loadtest" --protocol "$protocol" --url "$url" --concurrency "$clients" --duration "${seconds}s" --output-len "$tokens" \
    --input-len uniform:20:200 --no-calibrate --quiet --json "$work/$protocol.json" >"$work/$protocol.log" 2>&1 </dev/null &
  load[$protocol]=$!
  pids+=($!)
done
sleep 1
for ((round = 1; round <= rounds; ++round)); do
  restart_replica 1
  restart_replica 2
done
failed=0
for protocol in "${protocols[@]}"; do
  kill -0 "${load[$protocol]}" 2>/dev/null || {
    say "$protocol: the load ended before the last restart: $(tail -n 3 "$work/$protocol.log")"
    failed=1
  }
done
for protocol in "${protocols[@]}"; do
  wait "${load[$protocol]}" || failed=1
  judge "$protocol" || failed=1
done
[ $failed = 0 ] || die "a request failed, or a stream was cut${DETAILS:+; see $work}"
say "no request failed, and no stream was cut"
