#!/usr/bin/env bash
# Runs the steps' results in order on the real input, and writes one comparison
# table and report.html.
#
#   ./scripts/tour.sh                    each step's result
#   ./scripts/tour.sh --all              all variants
#   ./scripts/tour.sh --steps "01 04"    some steps, by number or by name
#   ./scripts/tour.sh --n 512            a shorter sequence (default 1024)
#   ./scripts/tour.sh --yes              installs what is missing without asking
#
# Names what is missing, installs it if you agree, and builds. With a GPU and
# the CUDA toolkit each step also runs on the GPU. The first run takes about three
# minutes on two cores, and 0.2 GB of disk (0.4 GB more for all packages). Exit
# status: 0 all right, 1 it could not continue, or a step failed or was wrong,
# 2 bad use.
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
n=1024
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
    --all)
      table=(--all)
      shift
      ;;
    --yes)
      yes=(--yes)
      shift
      ;;
    -h | --help)
      sed -n '2,15s/^# \{0,1\}//p' "$0"
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
# Two tours at once would mix their results in one table.
{ exec 9> build/tour.lock; } 2> /dev/null || stop "cannot write $PWD/build/tour.lock"
! command -v flock > /dev/null || flock -n 9 || stop "another tour is running in $PWD: wait until it ends"
: > "$log" || stop "cannot write $PWD/$log"

[[ -e build/sim/steps ]] || echo "the first run takes about three minutes on two cores, and 0.2 GB of disk (0.4 GB more for all packages)"
./scripts/setup.sh "${yes[@]}" || exit 1

# build <preset>: all programs at once; says how far it is, and why it failed.
build() {
  echo "building for $1 ($log)"
  PYTHONPATH=scripts python3 -B -m flash_steps.building "$log" "$1" "${programs[@]}"
}

backends=()
build sim && backends+=(sim)
if command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
  if ! command -v nvcc > /dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "this machine has a GPU but no nvcc: the steps cannot run on the GPU"
  elif ! build gpu; then
    echo "the GPU programs did not build: the steps cannot run on the GPU"
  else
    [[ ${backends[*]} ]] || echo "the simulator did not build: the steps run only on the GPU"
    backends+=(gpu)
  fi
fi
[[ ${backends[*]} ]] || stop "the simulator did not build; the full log is $PWD/$log"

# --- run ----------------------------------------------------------------------------------------

# Four heads leave most of a GPU idle: times are estimated for as many as fill it, from the same
# simulation. Where a GPU measures the four, the estimates beside it are of the four, too.
heads=128
[[ " ${backends[*]} " == *" gpu "* ]] && heads=0

out=build/tour
rm -rf "$out"
mkdir -p "$out"
failed=0
count=0
all=0
declare -A variants sizes
# The last variant is a step's result, and the one whose forward it has, where that is the step's,
# too. Decoding and windows have no other step to be compared with: their first variants run, too.
# Decoding has one query, and a cache that is long enough for its variants to differ.
chosen='
import json, sys
step, n = json.load(sys.stdin), int(sys.argv[1])
names = [v["name"] for v in step["variants"]]
decodes, windows = (step["supports"][what] for what in ("lengths", "window"))
borrowed = (step["variants"][-1].get("forward_of") or "").split()[1:]
first = names[:1] if decodes or windows else []
print(*(name for name in names if sys.argv[2:] or name in first + borrowed + names[-1:]))
size = f"--n 1 --nk {32 * n} --h 8 --hkv 2" if decodes else f"--n {n} --h 4"
print(size + (f" --window {n // 4},0" if windows else ""))
'
for name in "${programs[@]}"; do
  program=build/${backends[0]}/steps/$name
  if ! text=$("$program" --describe | python3 -c "$chosen" "$n" "${table[@]}"); then
    stop "$program --describe failed"
  fi
  { read -r "variants[$name]" && read -r "sizes[$name]"; } <<< "$text"
  all=$((all + $(wc -w <<< "${variants[$name]}") * ${#backends[@]}))
done
for name in "${programs[@]}"; do
  for variant in ${variants[$name]}; do
    for backend in "${backends[@]}"; do
      count=$((count + 1))
      printf '[%*d/%d] %-4s %-38s ' ${#all} "$count" "$all" "$backend" "$name $variant"
      file=$out/$name.$variant.$backend
      start=$(date +%s%N)
      read -ra size <<< "${sizes[$name]}"
      "build/$backend/steps/$name" --variant "$variant" --causal "${size[@]}" --d 64 \
        --estimate-heads "$heads" --input real --details --json "$file.json" > "$file.txt" 2>&1
      status=$?
      seconds=$((($(date +%s%N) - start) / 10000000))
      case $status in
        0) printf 'ok %5d.%02d s\n' $((seconds / 100)) $((seconds % 100)) ;;
        3) # No device for it, or no memory: its sentence says which.
          sentence=$(tail -n 1 "$file.txt")
          if [[ $backend == gpu ]]; then
            [[ ${backends[0]} == sim ]] && instead=': see the simulator row'
            printf 'cannot run here\n        %s%s\n' "${sentence%: run build/sim*}" "${instead-}"
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
  done
done

echo
./scripts/maintain report "${table[@]}" --out "$report" "$out" || failed=1
echo "next: steps/01_naive/README.md, the first chapter; exercises: ./scripts/learn"
exit $failed
