"""Function calling: how a model family writes calls, the grammar that keeps them valid, and how they are read back."""
