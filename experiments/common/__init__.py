"""What the studies share: the study writer, pictures, loaders of public data sets."""
