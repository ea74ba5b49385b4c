"""Jobs: submit, list, show, follow and cancel long work."""
