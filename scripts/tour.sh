#!/usr/bin/env bash
# Runs the steps' results in order on the real input, and writes one comparison
# table and report.html.
#
#   ./scripts/tour.sh                    each step's result
#   ./scripts/tour.sh --all              all variants
#   ./scripts/tour.sh --steps "01 04"    some steps, by number or by name
#   ./scripts/tour.sh --n 512            another length (1024, on a GPU 4096)
#   ./scripts/tour.sh --gpu L4           simulated, times estimated for an L4
#   ./scripts/tour.sh --yes              installs what is missing without asking
#
# Names what is missing, installs it if you agree, and builds. With a GPU and
# the CUDA toolkit each step runs on the GPU, on a problem that fills it; what
# the GPU cannot run is simulated. The first run takes about three minutes on
# two cores, and 0.2 GB of disk (0.4 GB more for all packages). Exit status:
# 0 all right, 1 it could not continue, or a step failed or was wrong, 2 bad use.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

refuse() {
  echo "tour.sh: $1" >&2
  exit 2
}

stop() {
  echo "tour.sh: $1" >&2
  exit 1
}

steps=all
n=
model=
table=()
yes=()
while (($#)); do
  case "$1" in
    --steps)
      steps=${2-}
      [[ -n $steps ]] || refuse '--steps needs a list like "01 04"'
      shift 2
      ;;
    --n)
      n=${2-}
      [[ $n =~ ^[1-9][0-9]*$ ]] || refuse "--n needs a positive number"
      shift 2
      ;;
    --gpu)
      model=${2-}
      [[ -n $model ]] || refuse "--gpu needs a name of common/data/gpus.json, like L4"
      shift 2
      ;;
    --all)
      table=(--all)
      shift
      ;;
    --yes)
      yes=(--yes)
      shift
      ;;
    -h | --help)
      sed -n '2,16s/^# \{0,1\}//p' scripts/tour.sh
      exit 0
      ;;
    *) refuse "unknown option '$1'; see --help" ;;
  esac
done

# --- which steps --------------------------------------------------------------------------------

programs=()
for wanted in $steps; do
  found=
  for main in steps/*/main.cu; do
    name=$(basename "$(dirname "$main")")
    # One rank repeats what others compute, and 16 runs on another GPU than the others.
    [[ $wanted == all && $name =~ ^(14_ring|16_blackwell)$ ]] && continue
    if [[ $wanted == "$name" || $name == "$wanted"_* || ($wanted == all && $name == [0-9]*) ]]; then
      programs+=("$name") found=yes
    fi
  done
  [[ $found ]] || refuse "no step '$wanted' in steps/"
done

# --- set up and build ---------------------------------------------------------------------------

log=build/tour.log
report=$PWD/report.html
mkdir -p build 2> /dev/null
[[ -d build && -w build ]] || stop "cannot write $PWD/build"
[[ -w $report || (! -e $report && -w .) ]] || stop "cannot write $report"
# Two concurrent tours would mix their results in one table.
{ exec 9> build/tour.lock; } 2> /dev/null || stop "cannot write $PWD/build/tour.lock"
! command -v flock > /dev/null || flock -n 9 || stop "another tour is running in $PWD: wait until it ends"
: > "$log" || stop "cannot write $PWD/$log"

[[ -e build/sim/steps ]] || echo "the first run takes about three minutes on two cores, and 0.2 GB of disk (0.4 GB more for all packages)"
./scripts/setup.sh "${yes[@]}" || exit 1

# build <preset> <program>...: all at once; shows progress, and why it failed.
build() {
  echo "building for $1 ($log)"
  PYTHONPATH=scripts python3 -B -m flash_steps.building "$log" "$@"
}

# The runs: lines with a backend, a step, a variant and arguments.
plan() {
  local found
  found=$(./scripts/maintain tour_runs ${n:+"--n=$n"} "${table[@]}" ${model:+"--model=$model"} "$@" \
    "${programs[@]}") || exit
  sed -n 's/^say\t//p' <<< "$found"
  mapfile -t runs < <(grep -v '^say' <<< "$found")
}

runs=()
if [[ ! $model ]] && command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
  if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "this machine has a GPU but no nvcc: the steps cannot run on the GPU"
  elif ! build gpu "${programs[@]}" $([[ $steps == all ]] && echo all_steps); then
    echo "the GPU programs did not build: the steps cannot run on the GPU"
  else
    plan --gpu
  fi
fi
# The simulator runs what the GPU does not.
simulated=("${programs[@]}")
if ((${#runs[@]})); then
  mapfile -t simulated < <(printf '%s\n' "${runs[@]}" | sed -n 's/^sim\t\([^\t]*\).*/\1/p' | sort -u)
fi
if ((${#simulated[@]})) && ! build sim "${simulated[@]}"; then
  mapfile -t runs < <(printf '%s\n' "${runs[@]}" | grep '^gpu')
  ((${#runs[@]})) || stop "the simulator did not build; the full log is $PWD/$log"
  echo "the simulator did not build: the steps run only on the GPU"
fi
((${#runs[@]})) || plan

# --- run ----------------------------------------------------------------------------------------

out=build/tour
rm -rf "$out"
mkdir -p "$out"
failed=0
count=0
all=${#runs[@]}
exec 8< /dev/null

# run_on_gpu <index>: sets status. One process does all runs up to the next that is simulated or
# fails: they share the start of CUDA, the inputs and the references.
run_on_gpu() {
  local run backend name variant words lines=()
  read -r -u 8 status && return
  for run in "${runs[@]:$1}"; do
    IFS=$'\t' read -r backend name variant words <<< "$run"
    [[ $backend == gpu ]] || break
    words="$name --variant $variant $words --input real --details --json $out/$name.$variant.gpu.json"
    lines+=("$out/$name.$variant.gpu.txt"$'\t'"${words// /$'\t'}")
  done
  exec 8< <(printf '%s\n' "${lines[@]}" | build/gpu/steps/all_steps)
  read -r -u 8 status || status=139
}

for ((i = 0; i < all; ++i)); do
  IFS=$'\t' read -r backend name variant words <<< "${runs[i]}"
  count=$((i + 1))
  printf '[%*d/%d] %-4s %-38s ' ${#all} "$count" "$all" "$backend" "$name $variant"
  file=$out/$name.$variant.$backend
  start=$(date +%s%N)
  if [[ $backend == gpu && $steps == all ]]; then
    run_on_gpu "$i"
  else
    read -ra size <<< "$words"
    "build/$backend/steps/$name" --variant "$variant" "${size[@]}" ${model:+"--gpu=$model"} \
      --input real --details --json "$file.json" > "$file.txt" 2>&1
    status=$?
  fi
  seconds=$((($(date +%s%N) - start) / 10000000))
  case $status in
    0) printf 'ok %5d.%02d s\n' $((seconds / 100)) $((seconds % 100)) ;;
    3) # No memory: its sentence says so.
      sentence=$(tail -n 1 "$file.txt")
      if [[ $backend == gpu ]]; then
        printf 'cannot run here\n        %s\n' "$sentence"
        rm -f "$file".*
      else
        printf 'FAILED\n        %s\n' "$sentence"
        failed=1
      fi
      ;;
    *)
      printf 'FAILED, exit status %d\n' "$status"
      head -n 8 "$file.txt" | sed 's/^/        /'
      failed=1
      ;;
  esac
done

echo
./scripts/maintain report "${table[@]}" --out "$report" "$out" || failed=1
echo "next: steps/01_naive/README.md, the first chapter; exercises: ./scripts/learn"
exit $failed
