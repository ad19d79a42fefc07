"""Model families, each a folder of its own, and what the rest of the project knows of any of them."""
