#!/usr/bin/env bash
# Starts lab/measure.py; --help says what it does.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 > /dev/null || {
  echo "gpu_check.sh: python3 is missing" >&2
  exit 3
}
exec python3 scripts/maintain gpu_check "$@"
