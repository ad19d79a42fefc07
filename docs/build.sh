#!/usr/bin/env bash
# Builds the documentation site, strictly: a broken link, an unknown reference or a failing command ends it with status 1.
#
#   bash docs/build.sh          # build/docs/index.html
#
# Makes its own virtual environment the first time (a few minutes of downloading): the Python reference is read off
# the package itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/venv.sh
ensure_venv .venv-docs "-e .[docs]"
JAX_PLATFORMS=cpu .venv-docs/bin/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet \
  --fresh-env --doctree-dir build/doctrees docs build/docs
echo "build/docs/index.html"
