"""The coupled rule's choice in C: the same tokens as the reference in `target` and `draw`, some 20 times sooner."""
