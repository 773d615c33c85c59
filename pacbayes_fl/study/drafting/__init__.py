"""First studies of a user's table, and a look at the table before any run."""
