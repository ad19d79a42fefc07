"""The reward is used by the judge sidecar and must not pull in JAX."""

import subprocess
import sys


def test_the_whole_package_imports_without_jax() -> None:
    modules = "aggregation client config failures media prompts scores segments session statistics templates"
    names = [f"vcap_jax.reward.{name}" for name in [*modules.split(), "witness_adjudicator"]]
    code = f"import sys, {', '.join(names)}; sys.exit('jax' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
