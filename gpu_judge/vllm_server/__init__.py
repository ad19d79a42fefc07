"""vLLM as the judge: exact command lines, checks before starting, supervision. Imports neither vLLM nor torch.

Read in this order: ``settings`` (what can be asked for), ``checkpoint`` and ``installation`` (what is there),
``command`` (settings to command lines, pure), ``checks`` (what would fail, with remedies), ``processes``,
``readiness``, ``stalls``, ``supervisor``, ``run``.
"""
