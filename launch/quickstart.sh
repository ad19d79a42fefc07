#!/usr/bin/env bash
# Sets up .venv on a machine that has only Python, then trains the image captioner of the embedded world.
#
#   bash launch/quickstart.sh                      # the defaults
#   bash launch/quickstart.sh --modality video     # whatever follows goes to launch/train.py
#   VCAP_EXTRAS=cuda13 bash launch/quickstart.sh   # with JAX for this accelerator: cuda12, cuda13 or tpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/venv.sh
ensure_venv .venv "-e .${VCAP_EXTRAS:+[$VCAP_EXTRAS]}"
if (($# == 0)); then set -- --modality image; fi
exec .venv/bin/python launch/train.py "$@"
