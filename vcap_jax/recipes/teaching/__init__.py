"""How the embedded world's starting policy is taught: to see, by short questions, and to caption by a weak habit.

Nobody shows it a caption that tells most of a picture: no text that it learns from states more than half of the facts
of its scene (``Corpus`` counts). What it can see and does not say is left for reinforcement learning to bring out.
"""
