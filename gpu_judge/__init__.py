"""The judge sidecar: an OpenAI-compatible chat server that adjudicates captions. Imports no JAX."""
