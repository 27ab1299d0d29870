# Sourced by ./test and ./demo in the root of the project: makes the virtual environment that both work in.

venv=.venv
python=$venv/bin/python

usable_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c "import sys${1:+, $1}; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

find_python() {
  usable_python "venv, ensurepip" && return
  if ! usable_python >/dev/null; then
    echo "Tailrace needs Python 3.11 or newer, and none is on the PATH. Install one (Debian: apt-get install python3 python3-venv)." >&2
    return 1
  fi
  if [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >/dev/null || true
    usable_python "venv, ensurepip" && return
  fi
  echo "This Python has no venv module. Install it (Debian, Ubuntu: sudo apt-get install python3-venv) and run $0 again." >&2
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
