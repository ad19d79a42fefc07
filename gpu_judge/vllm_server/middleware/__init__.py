"""What runs inside vLLM. The folder is the only one of ours on its path: it holds nothing that could be imported in the
place of a library of vLLM's own environment."""
