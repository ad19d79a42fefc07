# shellcheck shell=bash
# Sourced by the commands that set themselves up: finds a Python and keeps a virtual environment up to date.
#
#   ensure_venv DIR "first requirements" "next requirements" ...
#
# makes DIR if it is absent or broken and runs `pip install` once per argument, in that order. It does nothing when
# the requirements, pyproject.toml and the Python are those of the last complete installation, so an interrupted one
# is simply repeated. Run from the repository root. PYTHON=/path/to/python chooses the interpreter.

# As pyproject.toml has it: a newer Python is refused before pip looks for packages that are not there yet.
supported='import sys; assert (3, 11) <= sys.version_info < (3, 15)'

find_python() {
  local candidate version tried=()
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    # ensurepip is what Debian leaves out of its bare python3 package, and a venv needs it.
    if "$candidate" -c "$supported; import venv, ensurepip" >/dev/null 2>&1; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
    IFS= read -r version < <("$candidate" --version 2>&1) || version='says nothing'
    tried+=("$candidate: $version")
  done
  {
    echo "error: no Python 3.11 to 3.14 with the venv module was found on PATH."
    if ((${#tried[@]})); then printf '  found %s\n' "${tried[@]}"; fi
    echo "  Install one (Debian 12, Ubuntu 24.04 and newer: apt install python3 python3-venv; Ubuntu 22.04: apt install"
    echo "  python3.11 python3.11-venv; anywhere: uv python install 3.14) or name it: PYTHON=/path/to/python3.14"
  } >&2
  return 1
}

ensure_venv() {
  local dir=$1 python stamp requirements
  shift
  if "$dir/bin/python" -c "$supported; import pip" >/dev/null 2>&1; then
    python=$dir/bin/python
  else
    python=$(find_python) || return 1
    echo "Making $dir with $("$python" --version)" >&2
    "$python" -m venv --clear "$dir" || return 1
    # The pip that Python brings along may be years old and several times slower.
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip || return 1
  fi
  stamp=$("$python" -c '
import hashlib, pathlib, sys
text = "\n".join([pathlib.Path("pyproject.toml").read_text(), str(pathlib.Path.cwd()), sys.version, *sys.argv[1:]])
print(hashlib.sha256(text.encode()).hexdigest())' "$@") || return 1
  if [[ -f $dir/installed && $(<"$dir/installed") == "$stamp" ]]; then return 0; fi
  rm -f "$dir/installed"
  for requirements in "$@"; do
    echo "Installing $requirements into $dir (the first time takes a few minutes)" >&2
    # Word splitting is wanted: one argument may hold several requirements and options. Most modules of the large
    # packages are never imported, so compiling them all beforehand would only cost time.
    # shellcheck disable=SC2086
    "$dir/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check $requirements || {
      echo "error: pip could not install $requirements; its message is above. Run the command again once it is solved." >&2
      return 1
    }
  done
  echo "$stamp" >"$dir/installed"
}
