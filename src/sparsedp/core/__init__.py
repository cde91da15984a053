"""What every room may use: validation, array types, file writing, compiled loops."""
