"""VCap in JAX: visual captioning trained by GRPO on the witness-adjudicator reward.

The package root imports nothing heavy: ``vcap_jax.world`` and ``vcap_jax.reward`` are used by the judge
sidecar, which runs without JAX.
"""

__version__ = "0.1.0"
