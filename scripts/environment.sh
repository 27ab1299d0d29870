# Sourced by ./test and ./demo in the root of the project: makes the virtual environment that both work in.

venv=.venv
python=$venv/bin/python
# The one version of Python to take, such as 3.13; any from 3.11 on when it is empty.
python_wanted=

# use_version X.Y: take this version of Python, in a virtual environment of its own.
use_version() {
  if ! [[ $1 =~ ^3\.(1[1-9]|[2-9][0-9])$ ]]; then
    echo "'$1' is no version of Python that Tailrace runs on: name one from 3.11 on, such as 3.13." >&2
    return 1
  fi
  python_wanted=$1
  venv=.venv-$python_wanted
  python=$venv/bin/python
}

may_install() {
  [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null
}

# install_one_of PACKAGE...: the first one that this release of Debian has.
install_one_of() {
  local package
  apt-get update -qq >/dev/null || true
  for package in "$@"; do
    echo "installing $package" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null && return
  done
  return 1
}

# The commands to try, one a line: with a version the one on the PATH, then the newest that pyenv has.
pythons() {
  local versions=${PYENV_ROOT:-${HOME:-}/.pyenv}/versions directory patch newest=-1
  if [ -z "$python_wanted" ]; then
    printf '%s\n' python3 python3.14 python3.13 python3.12 python3.11
    return
  fi
  # pyenv puts a command on the PATH for every version that it has, and most of them only print that they are not active.
  echo "python$python_wanted"
  for directory in "$versions/$python_wanted".*; do
    patch=${directory##*.}
    # A preview (3.13.0rc1), or no directory at all.
    case $patch in *[!0-9]*) continue ;; esac
    [ "$patch" -le "$newest" ] || newest=$patch
  done
  [ "$newest" -lt 0 ] || echo "$versions/$python_wanted.$newest/bin/python"
}

usable_python() {
  local name
  while read -r name; do
    if "$name" -c "import sys${1:+, $1}; sys.exit(sys.version_info < (3, 11))" </dev/null >/dev/null 2>&1; then
      echo "$name"
      return 0
    fi
  done < <(pythons)
  return 1
}

find_python() {
  usable_python "venv, ensurepip" && return
  if ! usable_python >/dev/null; then
    if [ -n "$python_wanted" ]; then
      echo "There is no Python $python_wanted on the PATH or under pyenv: install it (pyenv install $python_wanted)." >&2
    else
      echo "Tailrace needs Python 3.11 or newer, and none is on the PATH. Install one (Debian: apt-get install python3 python3-venv)." >&2
    fi
    return 1
  fi
  if may_install; then
    install_one_of "python${python_wanted:-3}-venv"
    usable_python "venv, ensurepip" && return
  fi
  echo "This Python has no venv module. Install it (Debian, Ubuntu: sudo apt-get install python${python_wanted:-3}-venv) and run $0 again." >&2
  return 1
}

java_wanted=17

# The version of the Java that Spark starts, that of JAVA_HOME or else the first on the PATH; 0 when there is none.
java_version() {
  local told
  told=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1) || told=
  # It may say other things before:  openjdk version "17.0.15" 2025-04-15,  or in the old way  java version "1.8.0_292".
  told=$(sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' <<<"$told")
  told=${told%%$'\n'*}
  echo "${told:-0}"
}

# find_java: fails, and says what to do, when there is no Java for Spark; root on Debian gets one installed.
find_java() {
  local version place="on the PATH"
  [ "$(java_version)" -ge "$java_wanted" ] && return
  if [ -n "${JAVA_HOME:-}" ]; then
    place="in JAVA_HOME ($JAVA_HOME)"
  elif may_install; then
    install_one_of "openjdk-$java_wanted-jre-headless" default-jre-headless || true
    [ "$(java_version)" -ge "$java_wanted" ] && return
  fi
  version=$(java_version)
  if [ "$version" -eq 0 ]; then
    echo "Spark needs Java $java_wanted or newer, and there is none $place." >&2
  else
    echo "Spark needs Java $java_wanted or newer, and the one $place is Java $version." >&2
  fi
  echo "Install one (Debian, Ubuntu: sudo apt-get install openjdk-$java_wanted-jre-headless; macOS: brew install openjdk@$java_wanted), or set JAVA_HOME to where it is." >&2
  return 1
}

# find_rigs: what the tests of real faults use; root on Debian gets it installed, others are told, and those tests are left out.
find_rigs() {
  local tool package missing=()
  for tool in strace:strace mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs losetup:mount; do
    package=${tool#*:}
    PATH=$PATH:/usr/sbin:/sbin command -v "${tool%%:*}" >/dev/null && continue
    may_install && install_one_of "$package" && continue
    missing+=("$package")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  echo "Without ${missing[*]} some tests of real faults are left out (Debian, Ubuntu: sudo apt-get install ${missing[*]})." >&2
  return 1
}

# The project as it was installed: another place or another pyproject.toml needs another installation.
installation() {
  echo "$PWD $(cksum <pyproject.toml)"
}

installed() {
  [ "$(cat "$venv/$1" 2>/dev/null)" = "$(installation)" ]
}

# prepare_environment STAMP EXTRAS WHAT: the environment is made once, and installed into again only after a change.
# $venv/STAMP says for what it was installed; `installed` is the stamp of ./test, whose extras hold all others.
prepare_environment() {
  local maker
  if ! "$python" -c "" 2>/dev/null; then
    maker=$(find_python) || return 1
    echo "making $venv with $("$maker" --version)"
    rm -rf "$venv"
    "$maker" -m venv "$venv" || return 1
  fi
  if ! installed installed && ! installed "$1"; then
    echo "installing tailrace and $3 into $venv"
    "$python" -m pip install --quiet --disable-pip-version-check --editable ".[$2]" || return 1
    installation >"$venv/$1"
  fi
}
