"""The registry's rows: registrations, removals, groups, and the addresses of nodes."""
