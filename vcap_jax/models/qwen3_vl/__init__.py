"""Qwen3-VL in Flax NNX: the captioning policy.

Read in this order: ``config`` (what a checkpoint's config.json says), ``inputs`` (what goes in), ``rope``, ``vision``,
``text``, ``model`` (``Qwen3VL``), ``decoding``, ``weight_table`` (the names of Hugging Face checkpoints),
``partition``, and ``family``, which is all that the rest of the project knows of it.
Nothing is imported here, so reading a configuration needs no JAX.
"""
