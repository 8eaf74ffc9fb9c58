#!/bin/bash
# The part of fresh_test.sh that runs inside the new system, as a newcomer would: `make serve`, the line that it prints to
# paste, `make serve` again, `make test`. Writes lines of "name<tab>figure" to /opt/host/figures.
set -uo pipefail
cd /root/millrace || exit 1
host=/opt/host
: >$host/figures

figure() { printf '%s\t%s\n' "$1" "$2" >>$host/figures; }
now() { echo "${EPOCHREALTIME/[.,]/}"; } # Microseconds.
seconds() { awk -v us="$1" 'BEGIN { printf "%.1f s", us / 1e6 }'; }
fail() {
  echo "fresh-test: $*" >&2
  exit 1
}
installed_mb() { dpkg-query -W -f '${Installed-Size}\n' | awk '{ kb += $1 } END { printf "%d", kb / 1024 }'; }
folder_mb() { du -sm "$1" | cut -f1; }

# Runs a command in a session of its own. Each line that it prints is logged to $log with its arrival time in microseconds.
launch() {
  log=$1
  shift
  : >"$log"
  setsid bash -c '"$@" 2>&1 | while IFS= read -r line; do printf "%s\t%s\n" "${EPOCHREALTIME/[.,]/}" "$line"; done' \
    launch "$@" > >(tee "$log" | sed -u 's/^[^\t]*\t//' >&2) &
  session=$!
}

# Waits for the line to paste, runs it, and checks that the answer arrived in pieces. Sets ready and first_piece (microseconds).
paste() {
  local line
  until line=$(grep -m1 -oE 'curl -N .*' "$log"); do
    kill -0 "$session" 2>/dev/null || fail "make serve ended before it served"
    sleep 0.02
  done
  ready=$(now)
  bash -c "$line" 2>/dev/null | while IFS= read -r piece; do
    [ -s $host/first ] || now >$host/first
    echo "$piece"
  done >$host/answer
  first_piece=$(cat $host/first)
  rm $host/first
  [ "$(grep -c '^data: {' $host/answer)" -ge 3 ] || fail "the answer was not streamed: $(head -c 2000 $host/answer)"
  grep -q '^data: \[DONE\]' $host/answer || fail "the answer did not end with [DONE]: $(tail -c 500 $host/answer)"
}

stop() {
  kill -TERM -- "-$session"
  for _ in {1..300}; do
    (: </dev/tcp/127.0.0.1/8000) 2>/dev/null || return 0
    sleep 0.1
  done
  fail "the server still listens 30 s after SIGTERM"
}

# Prints when a matching `==` line arrived, or the fallback.
at() { awk -F'\t' -v pattern="$1" -v none="$2" '$2 ~ pattern { print $1; found = 1; exit } END { if (!found) print none }' "$log"; }

before=$(installed_mb)
begun=$(now)
launch $host/serve.log make serve
paste
fetching=$(at 'fetching the default' "$ready")
configuring=$(at 'configuring' "$ready")
building=$(at 'building build' "$ready")
figure "make serve: install packages" "$(seconds $((fetching - begun)))"
figure "make serve: fetch the model" "$(seconds $((configuring - fetching)))"
figure "make serve: configure" "$(seconds $((building - configuring)))"
figure "make serve: build and start" "$(seconds $((ready - building)))"
figure "make serve: in all, to the first piece" "$(seconds $((first_piece - begun)))"
figure "packages installed by make serve" "$(($(installed_mb) - before)) MB"
figure "build folder after make serve" "$(folder_mb build) MB"
figure "build/millraced" "$(($(stat -c %s build/millraced) / 1000000)) MB"
stop

begun=$(now)
launch $host/again.log make serve
paste
figure "make serve again, to ready" "$(seconds $((ready - begun)))"
figure "make serve again, to the first piece" "$(seconds $((first_piece - begun)))"
stop
[ $((ready - begun)) -le 5000000 ] || fail "make serve again took more than 5 s"

begun=$(now)
code=0
make test 2>&1 | tee $host/test.log || code=1
figure "make test" "$(seconds $(($(now) - begun)))"
figure "make test: $(grep -E '^[0-9]+ passed, [0-9]+ failed$' $host/test.log | tail -1)" ""
figure "packages installed in all" "$(($(installed_mb) - before)) MB"
figure "build folder in all" "$(folder_mb build) MB"
figure "cache folder (model, Python, tools)" "$(folder_mb /root/.cache/millrace) MB"
exit $code
