"""Rewards: families behind one interface, instructions, scores, aggregation and the judge client. Imports no JAX.

Start at :mod:`vcap_jax.reward.session` (what a trainer calls), :mod:`vcap_jax.reward.family` (what a family is) and
:mod:`vcap_jax.reward.witness_adjudicator` (what happens to one group in the paper's).
"""
