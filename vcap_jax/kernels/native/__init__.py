"""C++ for CPUs: kernels that XLA calls, compiled on the machine they run on (``library``, ``cpp/``)."""
