"""The command line: thin files that parse, call and print."""
