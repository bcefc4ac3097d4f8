#!/usr/bin/env bash
# Builds the documentation: build/sim/docs/html/index.html, readable offline.
set -euo pipefail
cd "$(dirname "$0")/../.."
case "${1-}" in
  "") ;;
  -h | --help) sed -n '2s/^# //p' "$0" && exit 0 ;;
  *) echo "docs.sh: it takes no arguments" >&2 && exit 2 ;;
esac
./scripts/setup.sh docs
./scripts/setup.sh --have docs || {
  echo "docs.sh: cannot continue without them" >&2
  exit 1
}
cmake --preset sim > /dev/null
cmake --build --preset sim --target docs
