"""Private means of sparse rows (SGO section 3)."""
