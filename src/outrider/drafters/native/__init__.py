"""Suffix lookup in C: what `drafters.suffix_search` says, in a fraction of the time."""
