"""GRPO: advantages and objective (pure functions), the optimizer, and the trainer that joins them."""
