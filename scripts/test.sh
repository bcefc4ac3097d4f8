#!/usr/bin/env bash
# All tests: needs no GPU. Installs what is missing, builds, runs every test, looks for stale tables
# in the text, builds the documentation and, where nvcc is there, compiles every kernel for its GPU.
#
#   ./scripts/test.sh              everything
#   ./scripts/test.sh -R step04    only the tests whose name matches (arguments go to ctest)
#
# Exit status: 0 all passed, 1 something failed; the last line says what.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
case "${1-}" in -h | --help)
  sed -n '2,8s/^# \{0,1\}//p' "$0"
  exit 0
  ;;
esac

jobs=$(nproc)
failures=()

./scripts/setup.sh docs gdb || exit

echo "== build"
cmake --preset sim || exit 1
cmake --build --preset sim -j "$jobs" || {
  echo "test.sh: the build failed"
  exit 1
}

echo "== tests"
ctest --preset sim -j "$jobs" --no-tests=error "$@" 2>&1 | tee build/ctest.txt \
  || failures+=("tests")

if (($# == 0)); then
  echo "== tables"
  python3 scripts/tables.py --check || failures+=("tables")

  echo "== documentation"
  if command -v doxygen > /dev/null; then
    cmake --build --preset sim --target docs || failures+=("documentation")
  else
    echo "skipped: no doxygen here"
  fi

  echo "== kernels for GPUs"
  if nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc); then
    "$nvcc" --version | tail -n 2 | head -n 1
    python3 scripts/ptxas_report.py --nvcc "$nvcc" --jobs 2 || failures+=("kernels for GPUs")
  else
    echo "skipped: no nvcc here"
  fi
fi

summary=$(grep -E "tests passed|No tests were found" build/ctest.txt)
echo
if ((${#failures[@]})); then
  echo "test.sh: FAILED: $(printf '%s, ' "${failures[@]}" | sed 's/, $//'); ${summary:-ctest died}"
  exit 1
fi
echo "test.sh: all passed; $summary"
