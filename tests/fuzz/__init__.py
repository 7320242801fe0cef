"""Random programs of views, writes and reductions, run in eager and compiled, and compared in full."""
