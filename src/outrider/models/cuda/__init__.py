"""The decoder for GPUs: Triton kernels, recorded as CUDA graphs, bit-exact rows by construction."""
