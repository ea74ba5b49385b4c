"""Jobs: submit, list, show, follow, cancel and retry long work."""
