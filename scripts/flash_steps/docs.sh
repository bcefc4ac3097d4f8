#!/usr/bin/env bash
# Builds the documentation: build/sim/docs/html/index.html, readable offline.
# With --yes it installs what is missing without asking.
set -euo pipefail
cd "$(dirname "$0")/../.."
case "${*-}" in
  "" | --yes) ;;
  -h | --help) sed -n '2,3s/^# //p' "$0" && exit 0 ;;
  *) echo "maintain docs: unknown option '$*'; see --help" >&2 && exit 2 ;;
esac
./scripts/setup.sh --need docs "$@" || exit 3
cmake --preset sim > /dev/null
cmake --build --preset sim --target docs
