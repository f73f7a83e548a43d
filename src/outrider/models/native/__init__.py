"""The decoder compiled for CPUs: one call per pass, weights packed once, bit-exact rows by construction."""
