"""Administration: one module per noun."""
