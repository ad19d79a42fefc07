#!/usr/bin/env bash
# Passes the tests on a machine that has only Python: environment, lint, format, types, order of the rooms, tests.
#
#   bash tests/run.sh                  # without torch: the comparisons with PyTorch use the golden files
#   bash tests/run.sh --live           # also installs the PyTorch implementations and compares with them live, and
#                                      # Playwright, which tries the pages in Chromium where that is installed
#   bash tests/run.sh --lowest         # with the oldest version of each package that pyproject.toml allows
#   bash tests/run.sh -m slow          # the slow tests, which are left out otherwise; -m "" runs all, -m "not long"
#                                      # those that take at most ten seconds each
#   bash tests/run.sh -k objective     # whatever follows goes to pytest
#
# Each way has an environment of its own, so that the default tests really run without torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/venv.sh

typed=true
if [[ ${1:-} == --live ]]; then
  shift
  venv=.venv-live
  # torch goes first and alone: a CPU build that pip can find is then taken as it is, and everything later that
  # asks for torch is content with it. torchvision would otherwise ask for the build it was compiled against.
  ensure_venv "$venv" "torch==2.13.0" "--no-deps torchvision==0.28.0" "-e .[dev,parity,browser]"
elif [[ ${1:-} == --lowest ]]; then
  shift
  venv=.venv-lowest
  typed=false # old stubs ask for more than new ones
  # What these packages ask for in turn is as new as they take it.
  lowest=$("$(find_python)" -c '
import re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
named = " ".join(project["dependencies"] + project["optional-dependencies"]["dev"])
print(*(f"{name}=={version}" for name, version in re.findall(r"([\w-]+)>=([\w.]+)", named)))')
  ensure_venv "$venv" "-e .[dev] $lowest"
else
  venv=.venv-test
  ensure_venv "$venv" "-e .[dev]"
fi
python=$venv/bin/python
# Bytecode is kept, in the environment, also where the caller has Python write none: pip has compiled nothing, and without
# it each of the many processes that the tests start would compile all of JAX anew.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$PWD/$venv/bytecode

# All are run even if one fails, so that one run tells everything.
work=$(mktemp -d)
failed=$work/failed
step() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || echo "$name" >>"$failed"
  echo "== $name: $((SECONDS - start)) s"
}
step lint "$python" -m ruff check --quiet --output-format concise .
step format "$python" -m ruff format --check --quiet --output-format concise .
# Types and rooms take one core for half a minute: they are looked at beside the rest, and told after it.
{
  if $typed; then step types "$python" -m mypy --no-error-summary; fi
  step rooms "$venv/bin/lint-imports" --no-logo
} >"$work/said" 2>&1 &
looking=$!
# A failing command of the trap would be the exit status of the whole.
trap 'kill "$looking" 2>/dev/null || true; rm -rf "$work"' EXIT
# The first time one process compiles the tests' bytecode, which both workers would compile, each for itself. What fails
# in it fails in the tests again, which say so.
compile_tests() {
  "$python" -m pytest -q --collect-only >/dev/null || true
}
if [[ ! -d $PYTHONPYCACHEPREFIX/${PWD#/}/tests ]]; then
  step bytecode compile_tests
fi
# Two at a time: most of the time goes into compiling, which uses one core. More would want more memory than a laptop has.
# Files go to the two in the order of tests/conftest.py, the longest first, and stay whole: tests share what a file sets up.
# A process that a test has ended is not replaced: the next one would begin with the same test.
step tests "$python" -m pytest -q -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "not slow" "$@"
wait "$looking"
cat "$work/said"

if [[ -s $failed ]]; then
  echo "failed: $(paste -s -d ' ' "$failed")"
  exit 1
fi
echo "passed: lint, format, $($typed && echo "types, ")rooms, tests"
