"""The kernels themselves, in Triton; each is tested against PyTorch, by the interpreter where there is no GPU."""
