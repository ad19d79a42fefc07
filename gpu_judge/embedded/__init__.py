"""The embedded judge: adjudicates captions of the embedded world by reading the pixels of the request."""
