"""Public benchmarks of captions behind the evaluator protocol, a module each (docs/evaluate.md).

A module loads the public files as they are, asks its questions in stages, and counts by the published formula. Its
prompts are ours, in ``vcap_jax/evals/prompts/NAME/``; a folder of one's own replaces any of them. Nothing of the data
is shipped.
"""
