"""What GRPO and supervised training share: optimizer, checkpoints, compilation counts."""
