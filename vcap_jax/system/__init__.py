"""What every process meets: errors, signals, clocks, waiting, files. Imports nothing heavy."""
