"""Qwen3.5: vision tower and input side of Qwen3-VL, and a decoder of which most layers keep a recurrent state.

Qwen3.6 and 3.8 are the same architecture. What is not defined here is in ``vcap_jax.models.qwen3_vl``.
"""
