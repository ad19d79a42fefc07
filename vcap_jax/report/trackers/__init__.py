"""Dashboards that a run's figures go to, beside its folder: TensorBoard, Weights & Biases, trackio.

Each is an optional package, imported when a run uses it. ``vcap_jax.run.trackers`` speaks to those that are configured.
"""
