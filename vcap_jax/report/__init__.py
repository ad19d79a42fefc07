"""The run folder and what is read off it: metrics, progress, plots, samples, summary. Imports no JAX."""
