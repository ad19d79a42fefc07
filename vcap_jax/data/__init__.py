"""From a manifest to batches of groups: rows, decoding, reference pools, the resumable pipeline."""
