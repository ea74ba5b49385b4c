"""Shell commands: one module for each noun."""
