#!/usr/bin/env bash
# Everything that needs a GPU. Builds, runs all tests on the GPU, compares the hardware's counters with
# the simulator's counts and measured HBM bytes with modelled ones, runs compute-sanitizer's four
# tools, and times the steps up to N = 16384, beside PyTorch and as in FlashAttention's figure. A call
# takes up to ten minutes. docs/gpu.md says which parts to run together, and what they prove.
#
#   ./scripts/gpu_check.sh --steps "01 02"        some steps, by number or by name
#   ./scripts/gpu_check.sh --sections "timing"    some sections
#   ./scripts/gpu_check.sh --sim-json DIR         the simulator's side, made earlier with --sim-only
#   ./scripts/gpu_check.sh --merge A.json B.json  one results.json from those of several calls
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
