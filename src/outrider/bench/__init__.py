"""Measuring: our own decoding and other people's, in one run, on the same prompts and weights. See docs/bench.md."""
