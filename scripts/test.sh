#!/usr/bin/env bash
# Builds and runs the tests, without a GPU. Names what is missing and installs it
# if you agree.
#
#   ./scripts/test.sh              what the steps, the simulator and the commands
#                                  of the README promise
#   ./scripts/test.sh --all        everything: also random shapes, all wrong
#                                  solutions, maintainers' tools, the pages in a
#                                  browser, the documentation, tables, formatting,
#                                  and where nvcc is installed each kernel for its
#                                  GPU. Installs Open MPI, Doxygen, MkDocs, gdb,
#                                  the formatters and, where apt has it, Chromium
#   ./scripts/test.sh --yes        installs what is missing without asking
#   ./scripts/test.sh -R step04    only the tests whose name matches, of either
#                                  length (arguments go to ctest)
#   ./scripts/test.sh --cuda       only what needs nvcc and no GPU: builds the
#                                  preset gpu and checks for spills on all GPUs
#                                  from sm_75 on; fails without nvcc
#
# The first run takes about ten minutes on two cores, and 0.7 GB of disk; with
# --all twenty minutes. Exit status: 0 all passed, 1 something failed; the last
# line says what, and with --all what was not run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

all='' cuda='' yes=()
while (($#)); do
  case "$1" in
    --all) all=yes ;;
    --cuda) cuda=yes ;;
    --yes) yes=(--yes) ;;
    -h | --help)
      sed -n '2,25s/^# \{0,1\}//p' scripts/test.sh
      exit 0
      ;;
    *) break ;;
  esac
  shift
done

jobs=$(nproc)
nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
failures=()
not_run=()

stop() {
  echo "test.sh: $1"
  exit 1
}

# missing <what> <tools>
missing() {
  echo "FAILED: $2 missing"
  failures+=("$1 ($2 missing)")
}

look_at_kernels() {
  "$nvcc" --version | tail -n 2 | head -n 1
  ./scripts/ptxas --nvcc "$nvcc" "$@" || failures+=("kernels for GPUs")
}

# summary <sentence>: the last line
summary() {
  local text=$1
  echo
  if ((${#not_run[@]})); then
    text+="; NOT RUN: $(printf '%s, ' "${not_run[@]}" | sed 's/, $//')"
  fi
  if ((${#failures[@]})); then
    stop "FAILED: $(printf '%s, ' "${failures[@]}" | sed 's/, $//'); $text"
  fi
  echo "test.sh: all passed; $text"
  exit 0
}

if [[ $cuda && ! $nvcc ]]; then
  stop "FAILED: --cuda needs nvcc, which is not installed"
fi
[[ -e build/sim/tests/test_ladder || $cuda ]] \
  || echo "the first run takes about $([[ $all ]] && echo twenty || echo ten) minutes on two cores, and 0.7 GB of disk (0.4 GB more for all packages)"
./scripts/setup.sh "${yes[@]}" ${all:+mpi docs gdb format} || exit 1
[[ $cuda ]] || python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || stop "the tests need Python 3.11 or newer, and here is $(python3 -V)"
[[ $all ]] && ./scripts/setup.sh "${yes[@]}" browser # Ubuntu's apt has none: not with the others

preset=sim
[[ $cuda ]] && preset=gpu && export CUDACXX=$nvcc
echo "== build"
made=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' build/$preset/CMakeCache.txt 2> /dev/null)
[[ ! $made || $made -ef build/$preset ]] \
  || stop "build/$preset was built for $made: rm -r build/$preset, and it is built for this folder"
tree=(--preset "$preset")
[[ -e build/$preset/CMakeCache.txt ]] && tree=(-S . -B "build/$preset") # it may be make's
cmake "${tree[@]}" || stop "cmake could not set up the build"
targets=(all)
if [[ $all && ! $cuda && $# == 0 ]] && ./scripts/setup.sh --have docs; then
  targets+=(docs) # for test_site; one core is enough for it
fi
if ! cmake --build --preset "$preset" -j "$jobs" --target "${targets[@]}"; then
  cmake --build --preset "$preset" -j "$jobs" || stop "the build failed"
  failures+=("documentation")
fi

if [[ $cuda ]]; then
  echo "== kernels for GPUs"
  look_at_kernels --every-arch
  look_at_kernels common/gpu/microbenchmarks/*.cu
  summary "the preset gpu builds"
fi

# run_tests [ctest's arguments]
run_tests() {
  echo "== tests"
  ctest --preset sim -j "$jobs" --no-tests=error "$@" 2>&1 | tee build/ctest.txt || failures+=("tests")
  tests=$(grep -E "tests passed|No tests were found" build/ctest.txt) || tests="ctest died"
}

if (($#)); then
  run_tests "$@"
  summary "$tests"
elif [[ ! $all ]]; then
  run_tests -LE '^all$'
  summary "$tests (--all runs more)"
fi

run_tests
./scripts/setup.sh --have docs || missing documentation "Doxygen or MkDocs are"
./scripts/setup.sh --have gdb || missing "a kernel in gdb" "gdb is"
./scripts/setup.sh --have mpi || missing "step 14 on several ranks" "Open MPI is"
./scripts/setup.sh --have browser || not_run+=("pages in a browser (no Chromium here)")

echo "== tables"
./scripts/maintain tables --check || failures+=("tables")

echo "== formatting"
./scripts/maintain format --check || failures+=("formatting")

echo "== kernels for GPUs"
if [[ $nvcc ]]; then
  look_at_kernels
else
  echo "not run: no nvcc here"
  not_run+=("kernels for GPUs (no nvcc here)")
fi
summary "$tests"
