"""Recipes, from a configuration to a result: GRPO, supervised training, best of N, distillation, rounds."""
