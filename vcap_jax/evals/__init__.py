"""Evaluations of captions behind one protocol (``protocol``): one module each, found by the names in ``config``.

Nothing here knows of a run: an evaluator is given a captioner, which may be a policy in training, a served model or a
folder of captions. ``vcap_jax.run.evaluation`` runs evaluators in a run.
"""
