#!/usr/bin/env bash
# Checks the steps on this machine's GPU: builds, runs all tests, compares the hardware's counters
# with the simulator's counts, runs compute-sanitizer's four tools, and times the steps up to N =
# 16384, alone and beside PyTorch. A call stops after ten minutes; the same call again continues.
# docs/gpu.md says what the sections prove.
#
#   ./scripts/gpu_check.sh --steps "01 02"        some steps, by number or by name
#   ./scripts/gpu_check.sh --sections "timing"    some sections
#   ./scripts/gpu_check.sh --help                 all options
#
# Exit status: 0 all right, 1 a section failed or was not reached, 2 bad use, 3 no GPU or tool.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 > /dev/null || {
  echo "gpu_check.sh: python3 is missing" >&2
  exit 3
}
exec python3 scripts/maintain gpu_check "$@"
