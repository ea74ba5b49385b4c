"""How did the schema become what it is?  One revision a file, run by `orchestrix db upgrade`."""
