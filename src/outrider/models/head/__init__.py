"""A drafting head: few layers that read the target's hidden states (EAGLE-3 style), and its checkpoint."""
