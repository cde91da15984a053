"""Private SGD with sparse gradients (SGO section 6, WIDE Algorithm 2)."""
