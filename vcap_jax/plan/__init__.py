"""A run planned before the hardware is there: the real programs compiled ahead of time, their bytes and their time."""
