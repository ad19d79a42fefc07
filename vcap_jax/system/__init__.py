"""What every process meets: errors, signals, clocks, waiting, files, JSON in types. Imports nothing heavy."""
