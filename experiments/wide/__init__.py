"""The studies of WIDE: Wide Network Learning with Differential Privacy."""
