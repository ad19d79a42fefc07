"""Supervised fine-tuning on (prompt, caption) pairs."""
