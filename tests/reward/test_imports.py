"""The reward is used without an accelerator, and must not pull in JAX or PyTorch."""

import json
import pkgutil
import subprocess
import sys

import vcap_jax.reward


def test_the_whole_package_imports_without_jax() -> None:
    names = [module.name for module in pkgutil.walk_packages(vcap_jax.reward.__path__, "vcap_jax.reward.")]
    assert {"vcap_jax.reward.session", "vcap_jax.reward.imitation", "vcap_jax.reward.vqa"} <= set(names)
    code = f"import json, sys, {', '.join(names)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout))
    assert set(names) <= imported
    assert imported.isdisjoint({"jax", "jaxlib", "flax", "torch"})
