"""Captions of anything by anybody: who captions, which inputs, the file and the page that captions go to."""
