#!/usr/bin/env bash
# Installs what is missing, and says what and why.
#
#   ./scripts/setup.sh              what every command needs
#   ./scripts/setup.sh docs gdb     and these groups besides
#
# On Debian and Ubuntu it calls apt, as root or through sudo, which may ask for your password where
# there is a terminal. Without either, or on another distribution, it prints what to ask for and
# goes on with what is there.
set -euo pipefail

# group     package              probe                                   why
packages='
required    g++                  command:g++                             compiles the kernels for the simulator
required    cmake                command:cmake                           builds
required    make                 command:make|command:ninja              builds
required    binutils             command:addr2line                       names the source line of a finding
required    python3              command:python3                         tables, reports and tests
required    catch2               header:catch2/catch.hpp|header:catch2/catch_all.hpp   tests
required    libboost-context-dev header:boost/context/fiber.hpp          one fiber per CUDA thread
required    libcli11-dev         header:CLI/CLI.hpp                      command lines
required    nlohmann-json3-dev   header:nlohmann/json.hpp                --json
required    libfmt-dev           header:fmt/format.h                     formatted text
docs        doxygen              command:doxygen                         builds the documentation
docs        doxygen-awesome-css  file:/usr/share/doxygen-awesome-css/doxygen-awesome.css   its looks
docs        libjs-mathjax        file:/usr/share/javascript/mathjax/MathJax.js   its formulas, offline
gdb         gdb                  command:gdb                             steps through one CUDA thread
plots       python3-matplotlib   python:matplotlib|file:/usr/lib/python3/dist-packages/matplotlib   draws the plots of compare.py
'

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  echo "groups: docs gdb plots"
}

groups=required
for argument in "$@"; do
  case "$argument" in
    docs | gdb | plots) groups+=" $argument" ;;
    -h | --help) usage && exit 0 ;;
    *) echo "setup.sh: unknown group '$argument': choose from docs, gdb, plots" >&2 && exit 2 ;;
  esac
done

# Is one of the probes "kind:what|kind:what" satisfied?
present() {
  local probe dir
  for probe in ${1//|/ }; do
    local what=${probe#*:}
    case "${probe%%:*}" in
      command) command -v "$what" > /dev/null && return ;;
      file) [[ -e $what ]] && return ;;
      python) python3 -c "import importlib.util as u; exit(u.find_spec('$what') is None)" \
        2> /dev/null && return ;;
      header)
        for dir in /usr/include /usr/local/include ${CPATH:+${CPATH//:/ }} \
          ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//:/\/include }/include}; do
          [[ -e $dir/$what ]] && return
        done
        ;;
    esac
  done
  return 1
}

missing=()
while read -r group package probe why; do
  [[ -n $group && " $groups " == *" $group "* ]] || continue
  if ! present "$probe"; then
    missing+=("$package")
    printf 'setup: %-20s is missing: %s\n' "$package" "$why"
  fi
done <<< "$packages"

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@" # somebody is there to type the password
  else
    sudo -n "$@"
  fi
}

if ((${#missing[@]})); then
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get > /dev/null; then
    echo "setup: this is no Debian or Ubuntu: install the above (the names are Debian's) by hand"
  else
    echo "setup: as root: $install"
    if ! as_root true; then
      echo "setup: no root here; ask for:  sudo $install"
    else
      log=$(mktemp)
      trap 'rm -f "$log"' EXIT
      # The package lists of a fresh machine are empty or too old to be of use. One broken source
      # fails this, and need not be the one that has the packages.
      as_root apt-get update > "$log" 2>&1 \
        || echo "setup: warning: apt-get update failed: $(tail -n 1 "$log")"
      # shellcheck disable=SC2086  # $install is a command line
      if ! as_root env DEBIAN_FRONTEND=noninteractive $install > "$log" 2>&1; then
        tail -n 5 "$log"
        echo "setup: apt could not install these; going on with what is there"
      fi
    fi
  fi
fi

# An old CMake fails on the presets with a message that helps nobody.
if command -v cmake > /dev/null; then
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  if [[ $(printf '%s\n3.25\n' "$version" | sort -V | head -n 1) != 3.25 ]]; then
    echo "setup: CMake $version is too old: 3.25 is the first that will do" \
      "(pip install cmake brings a newer one)"
  fi
fi
