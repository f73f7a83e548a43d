"""Which slots of a cache hold what: books only, no tensors and no torch."""
