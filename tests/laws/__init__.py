"""Laws that every method and every posterior obeys, whatever paper it comes from."""
