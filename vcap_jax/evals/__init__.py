"""Evaluations of captions: one module each."""
