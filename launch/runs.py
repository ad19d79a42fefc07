"""``vcap runs`` from a clone that is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vcap_jax.commands.runs import main

if __name__ == "__main__":
    sys.exit(main())
