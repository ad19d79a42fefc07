"""Attention and matrix products for CUDA, TPU and CPU, and the C++ of the last."""
