"""Workers that run other inference programs. Each is run by path with its own environment's Python; none may import
outrider."""
