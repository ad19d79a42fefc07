"""Checkpoints leave the project: Hugging Face folders with a model card."""
