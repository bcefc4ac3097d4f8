#!/usr/bin/env bash
# Formats C++, Python and shell with clang-format, ruff and shfmt, each at a fixed version.
#
#   ./scripts/maintain format            formats every file that git tracks
#   ./scripts/maintain format --check    changes nothing; names the files that would change
#
# Exit status: 0 done or nothing to do, 1 some file differs, 2 bad use, 3 the tools are missing.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

check=
case "${1-}" in
  '') ;;
  --check) check=yes ;;
  -h | --help)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  *)
    echo "maintain format: unknown option '$1'; see --help" >&2
    exit 2
    ;;
esac

mapfile -t cpp < <(git ls-files '*.cu' '*.cuh' '*.cpp' '*.h' 2> /dev/null)
if ((${#cpp[@]} == 0)); then
  echo "maintain format: git names no files here: it formats the files of a git checkout" >&2
  exit 3
fi

# Versions format differently, so these are from PyPI, not the system.
tools=(clang-format==14.0.6 ruff==0.17.6 shfmt-py==4.2.0)
bin=build/format/bin
if [[ $(cat build/format/tools 2> /dev/null) != "${tools[*]}" ]]; then
  if ! { python3 -m venv --clear build/format && "$bin/pip" -q install "${tools[@]}"; }; then
    echo "maintain format: cannot install ${tools[*]}: needs python3-venv, and PyPI once" >&2
    exit 3
  fi
  echo "${tools[*]}" > build/format/tools
fi

mapfile -t python < <(git ls-files '*.py' && git grep -lE '^#!.*python3|^exec python3 "\$0"' -- scripts ':!*.py')
mapfile -t shell < <(git ls-files '*.sh' '.ci/run')
bad=0

# clang-format leaves comments as they are, however long.
long=$(grep -nE '^.{101,}$' "${cpp[@]}" | grep -E '^[^:]*:[0-9]*:\s*//')
if [[ $long ]]; then
  printf '%s\nmaintain format: these comments are longer than 100 columns\n' "$long"
  bad=1
fi
if [[ $check ]]; then
  "$bin/clang-format" --dry-run --Werror "${cpp[@]}" 2>&1 | sed -n 's/: code should be.*//p' \
    | cut -d: -f1 | uniq
  ((PIPESTATUS[0] == 0)) || bad=1
  "$bin/ruff" format --quiet --check "${python[@]}" || {
    "$bin/ruff" format --check "${python[@]}"
    bad=1
  }
  "$bin/ruff" check --quiet "${python[@]}" || bad=1
  "$bin/shfmt" -i 2 -bn -ci -sr -l "${shell[@]}" | grep . && bad=1
  ((bad)) && echo "maintain format: ./scripts/maintain format fixes most of this" >&2
else
  "$bin/clang-format" -i "${cpp[@]}" || bad=1
  "$bin/ruff" check --quiet --fix "${python[@]}" > /dev/null
  "$bin/ruff" format --quiet "${python[@]}" || bad=1
  "$bin/ruff" check --quiet "${python[@]}" || bad=1
  "$bin/shfmt" -i 2 -bn -ci -sr -w "${shell[@]}" || bad=1
fi
exit $bad
