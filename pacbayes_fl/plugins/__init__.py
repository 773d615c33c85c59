"""Objects of users' files and of installed packages, by the names that studies give them."""
