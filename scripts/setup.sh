#!/usr/bin/env bash
# Says what is missing and why, and installs it on Debian and Ubuntu if you agree.
#
#   ./scripts/setup.sh                    what every command needs
#   ./scripts/setup.sh docs gdb format    groups, too (also mpi, browser)
#   ./scripts/setup.sh --yes              installs without asking
#   ./scripts/setup.sh --have docs        checks the group; 0: it is there
#   ./scripts/setup.sh --need docs        requires the group, like a compiler
#
# It calls apt as root or through sudo, which may ask for your password in a
# terminal. Without root it prints the line to run and continues with what is
# installed. Exit status: 0 the commands can run, 1 something that they require
# is missing, 2 bad use.
set -euo pipefail
cd "$(dirname "$0")/.." # the caller's may be deleted

# "required" must be there. Of "library", CMake fetches what is missing, but for Thrust.
#
# group     package              probe                                   why
packages='
required    g++                  command:g++                             compiles the kernels for the simulator
required    cmake                command:cmake                           builds
required    ninja-build          command:ninja                           builds
required    binutils             command:addr2line                       names the source line of a finding
required    python3              command:python3                         tables, reports and tests
library     catch2               header:catch2/catch.hpp|header:catch2/catch_all.hpp   tests
library     libcli11-dev         header:CLI/CLI.hpp                      command lines
library     nlohmann-json3-dev   header:nlohmann/json.hpp                --json
library     libfmt-dev           header:fmt/format.h                     formatted text
library     libthrust-dev        header:thrust/version.h                 CUDA programs that use Thrust
mpi         openmpi-bin          command:mpirun                          starts the ranks of step 14
mpi         libopenmpi-dev       header:openmpi/mpi.h|header:mpi.h|file:/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h|file:/usr/lib/aarch64-linux-gnu/openmpi/include/mpi.h   their messages
docs        doxygen              command:doxygen                         the API in the documentation
docs        python3-venv         python:ensurepip                        holds MkDocs, which builds its book
browser     chromium             command:chromium|command:chromium-browser|command:google-chrome   tests the pages in a browser
gdb         gdb                  command:gdb                             steps through one CUDA thread
format      git                  command:git                             names the files to format
format      python3-venv         python:ensurepip                        holds the formatters
'
choices='mpi, docs, gdb, format, browser'

# Where pip may not install into the system, as on Debian: a separate folder, with python3-venv.
newer_cmake='python3 -m venv ~/cmake && ~/cmake/bin/pip install cmake ninja && PATH=~/cmake/bin:$PATH'

yes='' have='' need=''
chosen=
for argument in "$@"; do
  case "$argument" in
    --yes) yes=yes ;;
    --have) have=yes ;;
    --need) need=yes ;;
    mpi | docs | gdb | format | browser) chosen+=" $argument" ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' scripts/setup.sh && exit 0 ;;
    *) echo "setup.sh: unknown group '$argument': choose from $choices" >&2 && exit 2 ;;
  esac
done
[[ ! $have || $chosen ]] || { echo "setup.sh: --have needs a group: $choices" >&2 && exit 2; }
groups="${have:-required library}$chosen"

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

# look [say]: collects the packages that are missing
look() {
  local group package probe why
  missing=() required=()
  while read -r group package probe why; do
    [[ -n $group && " $groups " == *" $group "* ]] || continue
    present "$probe" && continue
    missing+=("$package")
    [[ $group == required || ($need && " $chosen " == *" $group "*) ]] && required+=("$package")
    [[ ${1-} ]] && printf 'setup: %-20s is missing: %s\n' "$package" "$why"
  done <<< "$packages"
  return 0
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@" # a user can type the password
  else
    sudo -n "$@"
  fi
}

# apt <arguments>: to the log, whose last line says how far it is. Without a network, apt would try for minutes.
apt() {
  local pid said=$SECONDS
  as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive RES_OPTIONS='timeout:3 attempts:1' \
    apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 \
    -o DPkg::Lock::Timeout=60 "$@" <&0 > "$log" 2>&1 &
  pid=$!
  while kill -0 $pid 2> /dev/null; do
    sleep 0.2
    if [[ -t 1 && ! -s $log ]]; then
      : # sudo may be asking
    elif [[ -t 1 ]]; then
      printf '\r  %.77s\033[K' "$(tail -n 1 "$log")"
    elif ((SECONDS - said >= 15)); then
      said=$SECONDS
      printf '  %.77s\n' "$(tail -n 1 "$log")"
    fi
  done
  [[ -t 1 ]] && printf '\r\033[K'
  wait $pid
}

install() {
  echo "setup: reading the package lists (apt-get update)"
  # The lists may be empty or outdated; despite one broken source the packages may be available.
  apt update || echo "setup: warning: apt-get update failed: $(tail -n 1 "$log")"
  if ! grep -qE '^(Hit|Get):' "$log"; then
    echo "setup: apt reached no server: check the network"
    return
  fi
  echo "setup: installing, a minute or two"
  apt install -y --no-install-recommends "${missing[@]}" || {
    tail -n 5 "$log"
    echo "setup: apt could not install these packages"
  }
}

# May apt be called? If not, says what to run.
allowed() {
  local answer
  if ! command -v apt-get > /dev/null; then
    echo "setup: this is not Debian or Ubuntu: install the packages above by hand (the names are Debian's)"
  elif [[ $(id -u) != 0 ]] && ! command -v sudo > /dev/null; then
    echo "setup: no root here; ask an administrator to run:  $line"
  elif [[ ! $yes && ! -t 0 ]]; then
    echo "setup: nothing was installed; run:  ${sudo}$line   (or add --yes)"
  else
    if [[ $yes ]]; then
      echo "setup: as root: $line"
    else # the question goes to stderr: learn passes it on
      read -r -p "setup: as root: $line: install them now? [Y/n] " answer || answer=no
    fi
    if [[ ${answer-} == [Nn]* ]]; then
      echo "setup: nothing was installed"
    else
      as_root true && return
      echo "setup: no root here; ask an administrator to run:  sudo $line"
    fi
  fi
  return 1
}

if [[ $have ]]; then
  look
  ((${#missing[@]} == 0))
  exit
fi
look say
install="apt-get install -y --no-install-recommends"
line="$install ${missing[*]-}"
sudo=sudo\ 
[[ $(id -u) == 0 ]] && sudo=''
if ((${#missing[@]})) && allowed; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  install
  look
fi
if ((${#required[@]})); then
  how="$sudo$install ${required[*]}"
  command -v apt-get > /dev/null || how="your package manager"
  # When only these are missing, root is not needed.
  [[ $sudo && ${required[*]} =~ ^(cmake)?\ ?(ninja-build)?$ ]] && how+="; without root: $newer_cmake"
  echo "setup: cannot continue without ${required[*]}: install with $how" >&2
  exit 1
fi
if ((${#missing[@]})); then
  echo "setup: continuing without ${missing[*]} (CMake fetches the libraries, but for Thrust)"
fi

# older <version> <than>
older() {
  [[ $(printf '%s\n' "$@" | sort -V | head -n 1) != "$2" ]]
}

# An old CMake fails on the presets with a misleading message.
version=$(cmake --version | sed -n '1s/[^0-9]*//p')
if older "$version" 3.25; then
  echo "setup: CMake $version is too old: 3.25 or newer is needed; one for yourself: $newer_cmake" >&2
  exit 1
fi
version=$(python3 -c 'import platform; print(platform.python_version())')
if older "$version" 3.9; then
  echo "setup: Python $version is too old: 3.9 or newer is needed, 3.11 for learn and test.sh" >&2
  exit 1
elif older "$version" 3.11; then
  echo "setup: Python $version runs all but ./scripts/learn and ./scripts/test.sh, which need 3.11"
fi
