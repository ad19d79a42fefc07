"""The witness-adjudicator reward: instructions, scores, aggregation and the judge client. Imports no JAX.

Start at :mod:`vcap_jax.reward.session` (what a trainer calls) and :mod:`vcap_jax.reward.witness_adjudicator`
(what happens to one group).
"""
