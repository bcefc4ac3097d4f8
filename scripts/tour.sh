#!/usr/bin/env bash
# All steps in order on the real input: one comparison table, and report.html.
#
#   ./scripts/tour.sh                       everything
#   ./scripts/tour.sh --steps "01 04"       some steps, by number or by name
#   ./scripts/tour.sh --n 512               a shorter sequence (default 1024)
#
# Installs what is missing, builds, runs. With a GPU and the CUDA toolkit each step also runs there.
# Exit status: 0 all right, 1 a step failed or was wrong, 2 bad use.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

refuse() {
  echo "tour.sh: $1" >&2
  exit 2
}

steps=all
n=1024
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
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
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
    if [[ $wanted == "$name" || $name == "$wanted"_* || ($wanted == all && $name == [0-9]*) ]]; then
      programs+=("$name") found=yes
    fi
  done
  [[ $found ]] || refuse "no step '$wanted' in steps/"
done

# --- set up and build ---------------------------------------------------------------------------

./scripts/setup.sh || exit

log=build/tour.log
mkdir -p build
: > "$log"

# progress <what>: one line; in a terminal it also shows how far the build (on stdin) has come.
progress() {
  local line
  printf '%s' "$1"
  while IFS= read -r line; do
    if [[ -t 1 && $line =~ ^\[\ *([0-9]+(%|/[0-9]+))\] ]]; then # make's share or ninja's count
      printf '\r%s  %s' "$1" "${BASH_REMATCH[1]}"
    fi
  done
  printf '\n'
}

# build <preset>: quiet.
build() {
  {
    cmake --preset "$1" \
      && cmake --build --preset "$1" -j "$(nproc)" --target "${programs[@]}"
  } 2>&1 | tee -a "$log" | progress "building for $1 ($log)"
}

if ! build sim; then
  tail -n 25 "$log"
  echo "tour.sh: the simulator did not build; the whole log is $log" >&2
  exit 1
fi
backends=(sim)
if command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
  if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "there is a GPU but no nvcc: the steps run in the simulator only"
  elif build gpu; then
    backends+=(gpu)
  else
    tail -n 15 "$log"
    echo "the GPU programs did not build (see $log): the steps run in the simulator only"
  fi
fi

# --- run ----------------------------------------------------------------------------------------

out=build/tour
rm -rf "$out"
mkdir -p "$out"
failed=0
count=0
all=0
declare -A variants
for name in "${programs[@]}"; do
  if ! variants[$name]=$("build/sim/steps/$name" --list-variants); then
    echo "tour.sh: build/sim/steps/$name --list-variants failed" >&2
    exit 1
  fi
  all=$((all + $(wc -w <<< "${variants[$name]}") * ${#backends[@]}))
done
for name in "${programs[@]}"; do
  for variant in ${variants[$name]}; do
    for backend in "${backends[@]}"; do
      count=$((count + 1))
      printf '[%*d/%d] %-4s %-38s ' ${#all} "$count" "$all" "$backend" "$name $variant"
      file=$out/$name.$variant.$backend
      start=$(date +%s%N)
      "build/$backend/steps/$name" --variant "$variant" --causal --n "$n" --h 4 --d 64 \
        --input real --json "$file.json" > "$file.txt" 2>&1
      status=$?
      seconds=$((($(date +%s%N) - start) / 10000000))
      case $status in
        0) printf 'ok %5d.%02d s\n' $((seconds / 100)) $((seconds % 100)) ;;
        3) # No device for it, or no memory: its sentence says which.
          sentence=$(tail -n 1 "$file.txt")
          if [[ $backend == gpu ]]; then
            printf 'not here\n        %s: shown in the simulator\n' "${sentence%: run build/sim*}"
            rm -f "$file".*
          else
            printf 'FAILED\n        %s\n' "$sentence"
            failed=1
          fi
          ;;
        *)
          printf 'FAILED, exit status %d\n' "$status"
          tail -n 8 "$file.txt" | sed 's/^/        /'
          failed=1
          ;;
      esac
    done
  done
done

echo
python3 scripts/report.py --out report.html "$out" || failed=1
exit $failed
