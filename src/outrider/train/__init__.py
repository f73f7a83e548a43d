"""Making drafters: data written by the target, a student that learns from it, a checkpoint others can load."""
