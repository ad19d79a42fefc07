"""The embedded visual world: scenes with known facts, drawn as pictures and clips, and put into words.

Because a scene's fact set is known, the quantities of the paper's analysis (N facts, n claims, c correct ones) are
counted here instead of estimated. Nothing in this package but the making of its tiny policy imports JAX.
"""
