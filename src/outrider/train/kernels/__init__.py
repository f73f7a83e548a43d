"""Kernels of the bulk writer and of training, in Triton: imported only where they run."""
