"""Jobs in the database: sets of rows, read and written in few statements."""
