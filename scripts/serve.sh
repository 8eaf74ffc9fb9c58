#!/usr/bin/env bash
# `make serve`: installs what is missing, fetches the default model, builds the daemon and runs it with the given flags.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"

scripts/setup.sh build
device=$(setting device "$@")
# With another model, or none, there is nothing to download.
[ "$device" = fake ] || [ -n "$(setting model "$@")" ] || scripts/fetch_model.sh
targets=(millraced)
configured=$([ ! -f build/build.ninja ] || echo 1)
if [ "$device" = torch ]; then
  [ "$(uname -m)" = x86_64 ] || die "--device torch: LibTorch is fetched for x86-64 alone"
  scripts/fetch_torch.sh
  targets+=(executors_torch)
  configured=
fi
if [ -z "$configured" ]; then
  say "configuring build/"
  cmake -S . -B build -G Ninja -DMILLRACE_TESTS=OFF --log-level=WARNING >/dev/null
fi
say "building build/millraced with $JOBS jobs"
build_quietly build "${targets[@]}"

# Prints a line to paste once the daemon has logged its address.
ready=$(mktemp -u "${TMPDIR:-/tmp}/millrace-ready.XXXXXX")
trap 'rm -f "$ready"' EXIT
field() { sed -E "s/.*\"$1\": *\"?([^\",}]+).*/\1/" "$ready"; }
(
  until [ -s "$ready" ]; do
    kill -0 $$ 2>/dev/null || exit 0
    sleep 0.05
  done
  base=http://127.0.0.1:$(field http)
  name=$(curl -fsS "$base/v1/models" | tr -d '\n' | sed -E 's/.*"data": *\[[^]]*"id": *"([^"]+)".*/\1/')
  cat <<TEXT

Millrace serves $name
  console  http://127.0.0.1:$(field admin)/   (chat with it in a browser)
  HTTP     $base   (OpenAI's API)
  gRPC     127.0.0.1:$(field grpc)   (millrace.v1.Inference, reflection on)
Stop it with Ctrl-C. In another terminal, a chat, and an answer as programs get it:

build/millraced chat --url $base

curl $base/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "$name", "temperature": 0, "max_tokens": 100, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}'

TEXT
  rm -f "$ready"
) &
exec build/millraced --ready-file "$ready" "$@"
