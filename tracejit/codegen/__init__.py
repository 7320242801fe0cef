"""From a fusion region to the source text of its kernels: lowering, kernel IR, renderer and dialects."""
