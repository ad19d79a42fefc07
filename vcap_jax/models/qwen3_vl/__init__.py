"""Qwen3-VL in Flax NNX: the captioning policy.

Read in this order: ``config`` (what a checkpoint's config.json says), ``inputs`` (what goes in), ``rope``,
``attention``, ``layers``, ``vision``, ``text``, ``model`` (the public surface: ``Qwen3VL``), ``weight_table`` and
``weights`` (Hugging Face checkpoints in and out). Nothing is imported here, so reading a configuration needs no JAX.
"""
