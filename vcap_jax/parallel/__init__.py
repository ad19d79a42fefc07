"""Devices and processes: where arrays lie, how programs are split, what processes tell each other."""
