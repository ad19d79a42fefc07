"""Whole undertakings: GRPO, supervised training, distillation, best of N, self-improvement."""
